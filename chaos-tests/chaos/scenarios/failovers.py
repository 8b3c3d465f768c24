"""Fail-overs of master-slave groups that some nodes do not learn of, and changes of mode (3.6).

Two of five nodes have no replica of the name server, and ask those of the others over links of
their own: a master can be cut from the controller alone, and from nodes that hear the controller.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from chaos.links import Pair
from chaos.losses import MessagePlace, reported
from chaos.profile import ClusterMode, Profile
from chaos.receipts import Moment, acked_count
from chaos.recorder import now_ns
from chaos.scenario import HA, ScenarioContext, scenario
from chaos.strikes import lead
from checkers.history import Value
from quorumlog.admin.types import HaStatus

ASKING: Final = Profile(node_count=5)
CHANGED_MODES: Final = Profile(is_own=True, loses=True)
"""Nodes whose settings are changed by the scenario."""
SERVES_S: Final = 1.0
"""Time for which a silent master still serves: it is replaced after three times as long."""


async def _asking_master(x: ScenarioContext) -> tuple[int, int]:
    """Make a node without a name server replica master; return it and the other such node."""
    master, other = [node for node in x.cluster.node_ids if x.cluster.links.to_nameserver(node)]
    if await x.leader() != master:
        await lead(x, master)
    return master, other


async def _cut_from_nameserver(x: ScenarioContext, *nodes: int) -> list[Pair]:
    pairs = x.cluster.links.to_nameserver(*nodes)
    x.prove(f"nodes {nodes} ask over {len(pairs)} links", len(pairs) == 3 * len(nodes))
    await x.do(x.cluster.links.cut, pairs)
    return pairs


async def _is_fenced(x: ScenarioContext, old: int, epoch: int) -> None:
    """Wait for another master; demand of a sync group that the old epoch acks no later call."""
    first_acks = x.load.clients.first_ack_of_term
    await x.until("a receipt of a later epoch", lambda: max(first_acks) > epoch)
    fenced_ns = min(at for term, at in first_acks.items() if term > epoch)
    if x.options.mode is ClusterMode.SYNC_MASTER:
        await x.linger(2.0)
        late = acked_count(x.recorder.operations, since_ns=fenced_ns, term=epoch)
        x.demand_none(
            [f"epoch {epoch} acked {late} calls that began behind the fence"] * bool(late)
        )
        x.prove(f"node {old} acks nothing behind the fence", True)


@scenario("controller-cut", "H3", profile=ASKING, modes=HA)
async def controller_cut(x: ScenarioContext) -> None:
    """The master is cut from the name server alone: it serves until it is fenced, and not after."""
    master, _ = await _asking_master(x)
    epoch = await x.term()
    async with x.fault("controller-cut", f"node {master} from the name server"):
        pairs = await _cut_from_nameserver(x, master)
        cut_ns = now_ns()
        await x.linger(SERVES_S)
        served = acked_count(x.recorder.operations, since_ns=cut_ns, term=epoch)
        x.prove(f"node {master} acked {served} calls that began after the cut", served > 0)
        new = await x.new_leader(master)
        took_s = (now_ns() - cut_ns) / 1e9
        x.prove(f"node {new} serves {took_s:.1f} s after the cut", await x.term() > epoch)
        await _is_fenced(x, master, epoch)
        # Its links to the others are whole, so it learns of the new epoch and follows.
        await x.until(f"node {master} follows", _follows, x, master)
        await x.do(x.cluster.links.join, pairs)
    await x.acked()


def _follows(x: ScenarioContext, node: int) -> bool:
    return x.cluster.status()[node].role == "follower"


@scenario("deaf-slave", "H13", profile=ASKING, modes=HA)
async def deaf_slave(x: ScenarioContext) -> None:
    """A fail-over while one slave does not know the new epoch, and still acks the old master.

    The new master waits for the fence, and then the old one has no slave left."""
    links = x.cluster.links
    master, deaf = await _asking_master(x)
    others = [node for node in x.cluster.node_ids if node not in (master, deaf)]
    epoch = await x.term()
    async with x.fault("deaf-slave", f"{master} and {deaf} from {others} and the name server"):
        apart = await x.do(links.split, [master, deaf], others)
        asking = await _cut_from_nameserver(x, master, deaf)
        candidates: list[int] = []
        await x.until("a node is to become master", _has_candidate, x, others, candidates)
        began_ns = now_ns()
        await x.linger(4 * SERVES_S)
        served = acked_count(x.recorder.operations, since_ns=began_ns, term=epoch)
        x.prove(f"{master} acked {served} calls with {deaf}, beside {candidates}", served > 0)
        x.prove("no node serves a later epoch", max(x.load.clients.first_ack_of_term) == epoch)
        states = await x.do(x.cluster.status)
        x.prove("no candidate serves", not any(states[node].role == "leader" for node in others))
        # The deaf slave learns of the new epoch; the old master still does not.
        await x.do(links.join, [pair for pair in apart if deaf in pair])
        await x.until("a candidate serves", lambda: x.cluster.leader() in others)
        alone_ns = now_ns()
        await _is_fenced(x, master, epoch)
        if x.options.mode is ClusterMode.SYNC_MASTER:
            x.none_acked("the old master alone", Moment(alone_ns, epoch, until_ns=None),
                         only_term=True)  # fmt: skip
        await x.do(links.join, [*apart, *asking])
    await x.acked()
    await x.until(f"node {master} follows", _follows, x, master)


def _has_candidate(x: ScenarioContext, nodes: list[int], candidates: list[int]) -> bool:
    states = x.cluster.status()
    candidates[:] = [node for node in nodes if states[node].role == "candidate"]
    return bool(candidates)


# --- Modes ---


@dataclass(slots=True)
class _Modes:
    """Mode of each epoch, as reported by its master."""

    of_epoch: dict[int, str] = field(default_factory=dict)

    async def note(self, x: ScenarioContext, node: int) -> str:
        """Ask a master for its mode, and remember it."""
        status: HaStatus = await x.load.clients.client.admin.ha_status(node)
        self.of_epoch[status.epoch] = status.mode
        return status.mode


def misstated(places: Mapping[Value, MessagePlace], modes: Mapping[int, str]) -> list[str]:
    """Return receipts whose claim of copies does not fit the mode in force, of known epochs.

    A later master that acks a message it found in its log claims its own mode."""
    problems = []
    for value, place in places.items():
        if place.term not in modes:
            continue
        in_force = {modes[place.term]}
        if place.is_duplicate:
            in_force |= {mode for epoch, mode in modes.items() if epoch > place.term}
        if ("sync" if place.is_copied else "async") not in in_force:
            said = "that others hold it" if place.is_copied else "that the master alone does"
            problems.append(
                f"H12: {value!r} of epoch {place.term}, which is {modes[place.term]}, says {said}"
            )
    return problems


@scenario("mode-changes", "H12", profile=CHANGED_MODES, modes=HA)
async def mode_changes(x: ScenarioContext) -> None:
    """Async becomes sync and async again under load: each receipt tells the mode of its record.

    A fail-over loses no record that others were said to hold."""
    modes = _Modes()
    await modes.note(x, await x.leader())
    first = x.options.mode.value
    other = next(
        mode.value for mode in (ClusterMode.SYNC_MASTER, ClusterMode.ASYNC_MASTER) if mode != first
    )
    for wanted in (other, first, other):
        node = await x.follower()
        x.inject("mode", f"{wanted} by node {node}")
        await _set_replication(x, node, wanted)
        await lead(x, node)
        noted = await modes.note(x, node)
        x.prove(f"node {node} is a master that is {noted}", noted == wanted.partition("_")[0])
        await x.acked(200)
    before = len(x.load.clients.places)
    old = await x.kill_leader("the master")
    new = await x.new_leader(old)
    await modes.note(x, new)
    await x.acked(200)
    await x.restart(old)
    places = x.load.clients.places
    x.demand_none(misstated(places, modes.of_epoch))
    seen = {modes.of_epoch.get(place.term) for place in places.values()}
    x.prove(f"receipts of epochs {modes.of_epoch}, {before} before the kill",
            {"sync", "async"} <= seen)  # fmt: skip
    losses = await reported(x.load.clients.client)
    x.recorder.note("node", f"{len(losses)} losses are reported")


async def _set_replication(x: ScenarioContext, node: int, wanted: str) -> None:
    """Write a node's mode as master into its settings, and restart it."""
    path = x.cluster.local.node_directory(node) / "node.toml"
    lines = path.read_text("utf-8").splitlines(keepends=True)
    changed = [
        f'replication = "{wanted}"\n' if line.startswith("replication = ") else line
        for line in lines
    ]
    assert changed != lines or f'replication = "{wanted}"\n' in lines, f"{path} says nothing of it"
    await x.do(x.cluster.stop, node)
    path.write_text("".join(changed), "utf-8")
    await x.restart(node)
