"""The liveness phase: faults end, and the cluster has to recover in bounded time (I15, I13).

Owns the two demands of fault-matrix 10.5. First a random quorum is healed while all other nodes
stay cut off: it must elect one leader, answer every open call and take a new record. Then all nodes
are healed: all logs must become equal. Must not look at how the cluster gets there.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from checkers.history import AppendCall, Drain
from raft.errors import Outcome
from raft.messages import NodeId, Standing
from raft.quorum import quorum_size
from raft.ready import EntryKind
from raft.rules import recovery
from simulation.raft.ledger import is_put
from simulation.raft.verdict import InvariantError
from simulation.raft.world.network import SimulatedLink
from simulation.raft.world.process import Process, Status
from simulation.raft.world.workload import QUEUE, CallKind, SimulatedClient

if TYPE_CHECKING:
    # A circle of types: a world makes its parts, and they act on it and on each other.
    from raft.messages import Configuration
    from simulation.raft.world.world import World

DEADLINE_ELECTIONS = 20
EVENT_COUNT_MAX = 60_000
"""Far above the need of the phase: more events in this time are a storm, which is a failure too."""


class NeedsOperatorError(Exception):
    """No leader can be elected by the rules until an operator accepts a loss (docs/operations.md).

    Voters in doubt grant nothing; and the remaining voters of full standing may be too few for a
    candidate, because one of them holds newer entries that never were committed, and is itself no
    candidate: according to its own log it is a learner."""


def live_on(world: World) -> None:
    """Heal, demand progress, and end with all replicas equal.

    Raises InvariantError, or NeedsOperatorError."""
    random = Random(world.options.seed ^ 0x11FE)
    world.calm()
    for client in world.clients:
        client.is_stopped = True
    quorum = _draw_quorum(world, random)
    _wake(world, quorum)
    if world.options.total_loss and random.random() < 0.5:
        _accept_loss(world, quorum)
    outsiders = [node_id for node_id in world.nodes if node_id not in quorum]
    links = _links_between(world, outsiders, quorum)
    world.network.cut(links)
    world.reachable = list(quorum)
    _wait(world, "a healed quorum", lambda: _is_serving(world, quorum))
    _demand_append(world)
    world.network.heal(links)
    members = _members(world)
    _wake(world, list(world.nodes))
    world.reachable = list(members)
    _wait(world, "everybody healed", lambda: _is_equal(world, members))
    for client in world.clients:
        client.give_up()


def _relevant(world: World) -> list[Configuration]:
    """Return the newest committed configuration and all that may still replace it."""
    ledger = world.referee.ledger.entries
    configurations: list[Configuration] = []
    for node in world.nodes.values():
        base = node.disk.memory.base_configuration
        if base is not None and base.index == -1:
            configurations = [base.configuration]
    committed = [entry.body for entry in ledger if entry.kind is EntryKind.CONFIGURATION]
    if committed:
        configurations = [committed[-1]]  # type: ignore[list-item]
    elif not configurations:
        configurations = [_bootstrap(world)]
    for node in world.nodes.values():
        for image in (node.disk.memory, node.disk.durable):
            for entry in image.entries:
                if entry.kind is EntryKind.CONFIGURATION and entry.index >= len(ledger):
                    configurations.append(entry.body)  # type: ignore[arg-type]
    return configurations


def _bootstrap(world: World) -> Configuration:
    from raft.messages import Configuration

    return Configuration(tuple(range(1, world.options.voter_count + 1)))


def _is_full(node: Process) -> bool:
    standing = node.disk.memory.hard_state.standing
    return standing is Standing.FULL and not node.is_copy


def _draw_quorum(world: World, random: Random) -> list[NodeId]:
    """Return few nodes that can elect a leader and hold a majority of every possible configuration.

    The majorities alone do not suffice: a leader outside of them may have given newer entries to a
    node that is its learner and a voter to all others, and then none of the others can win."""
    configurations = _relevant(world)
    pool = sorted({voter for found in configurations for voter in found.voters})
    random.shuffle(pool)
    chosen: list[NodeId] = []
    for node_id in (*pool, None):
        majorities = all(_has_quorum(world, chosen, found.voters) for found in configurations)
        if majorities and _is_electable(world, chosen):
            return sorted(chosen)
        if node_id is not None:
            chosen.append(node_id)
    return sorted(world.nodes)  # Too many are in doubt: all nodes are needed.


def _is_electable(world: World, chosen: list[NodeId]) -> bool:
    """Whether the logs let one of the nodes of full standing win by the others' votes."""
    nodes = [world.nodes[node_id] for node_id in chosen if node_id in world.nodes]
    full = {node.node_id: node.disk.memory for node in nodes if _is_full(node)}
    for node_id, image in full.items():
        configuration = image.configuration()
        if configuration is None or node_id not in configuration.voters:
            continue
        votes = [
            voter
            for voter in configuration.voters
            if voter in full and full[voter].log_end() <= image.log_end()
        ]
        if len(votes) >= quorum_size(len(configuration.voters)):
            return True
    return False


def _has_quorum(world: World, chosen: list[NodeId], voters: tuple[NodeId, ...]) -> bool:
    full = [
        node_id
        for node_id in chosen
        if node_id in voters and node_id in world.nodes and _is_full(world.nodes[node_id])
    ]
    return len(full) >= quorum_size(len(voters))


def _members(world: World) -> list[NodeId]:
    """Return voters and learners of the newest committed configuration."""
    configuration = _relevant(world)[0]
    return [
        node_id
        for node_id in (*configuration.voters, *configuration.learners)
        if node_id in world.nodes
    ]


def _accept_loss(world: World, quorum: list[NodeId]) -> None:
    """Accept the loss on a quorum with the newest logs, if no voter kept its memory."""
    nodes = [world.nodes[node_id] for node_id in quorum]
    states = [node.replica.core.state for node in nodes if node.is_up]
    if len(states) < len(nodes) or any(
        state.standing is not Standing.RECOVERING for state in states
    ):
        return
    newest_first = sorted(
        nodes,
        key=lambda node: (
            node.replica.core.state.log.last_term,
            node.replica.core.state.log.last_index,
        ),
        reverse=True,
    )
    for node in newest_first[: quorum_size(len(nodes))]:
        recovery.accept_loss(node.replica.core.state)
        world.coverage.hit("loss_accepted")
        node.settle()


def _wake(world: World, node_ids: list[NodeId]) -> None:
    for node_id in node_ids:
        node = world.nodes.get(node_id)
        if node is None:
            continue
        if node.status is Status.DOWN:
            node.start()
        elif node.status is Status.PAUSED:
            node.resume()


def _links_between(world: World, ones: list[NodeId], others: list[NodeId]) -> list[SimulatedLink]:
    link = world.network.link
    return [link(a, b) for a in ones for b in others] + [link(b, a) for a in ones for b in others]


def _wait(world: World, what: str, is_done) -> None:  # type: ignore[no-untyped-def]
    step_us = world.options.election_us // 4
    limit = world.event_count + EVENT_COUNT_MAX
    deadline = world.now + DEADLINE_ELECTIONS * world.options.election_us
    while not is_done():
        if world.now >= deadline or world.event_count >= limit:
            if _is_stuck_in_doubt(world):
                raise NeedsOperatorError(what)
            nodes = [
                f"{node} {node.status.name} {node.replica.core.state.role.name}@{node.seen_term} "
                f"commit {node.seen_commit} last {node.disk.memory.last_index}"
                for node in world.nodes.values()
            ]
            raise InvariantError("I15", f"{what}: no progress in time; {'; '.join(nodes)}")
        world.run(until_us=world.now + step_us, event_count_max=limit)
        world.now = max(world.now, min(deadline, world.now + step_us))


def _is_stuck_in_doubt(world: World) -> bool:
    """Whether voters are in doubt, and without them no log is new enough for enough votes."""
    nodes = [world.nodes[node_id] for node_id in world.reachable]
    up = {node.node_id: node.replica.core.state for node in nodes if node.is_up}
    voters = {voter for found in _relevant(world) for voter in found.voters}
    full = {n: state for n, state in up.items() if state.standing is Standing.FULL}
    if not any(n in voters for n in up.keys() - full.keys()):
        return False
    for state in full.values():
        newest = (state.log.last_term, state.log.last_index)
        votes = [
            full[voter]
            for voter in state.voters
            if voter in full and (full[voter].log.last_term, full[voter].log.last_index) <= newest
        ]
        if state.is_voter and len(votes) >= quorum_size(len(state.voters)):
            return False
    return True


def _is_serving(world: World, quorum: list[NodeId]) -> bool:
    """Whether one leader has begun to commit in its term, and no call of the safety phase is
    open."""
    leaders = [world.nodes[node_id] for node_id in quorum if world.nodes[node_id].was_leader]
    if len(leaders) != 1:
        return False
    state = leaders[0].replica.core.state
    if state.commit < state.own_term_first:
        return False
    return all(client.call is None for client in world.clients)


def _demand_append(world: World) -> None:
    """Demand that a record of a new client is taken."""
    probe = SimulatedClient(world, 0)
    probe.is_stopped = True
    world.clients.append(probe)
    probe.target = world.reachable[0]
    before = len(world.history)
    probe.call_now(CallKind.APPEND)
    _wait(world, "a new append", lambda: probe.call is None)
    if world.history[-1].outcome is not Outcome.APPLIED or len(world.history) == before:
        raise InvariantError("I15", "a healed quorum did not take a new record")


def _is_equal(world: World, members: list[NodeId]) -> bool:
    """Whether every member has applied the whole log, and no other entries exist (I13)."""
    leader = world.leader()
    if leader is None:
        return False
    last = leader.disk.memory.last_index
    if leader.seen_commit != last or len(world.referee.ledger.entries) != last + 1:
        return False
    nodes = [world.nodes[node_id] for node_id in members]
    return all(
        node.is_up
        and not node.is_copy
        and node.applied == last
        and node.disk.memory.last_index == last
        and node.disk.memory.chain_at(last) == leader.disk.memory.chain_at(last)
        for node in nodes
    )


def drains(world: World) -> list[Drain]:
    """Read all values back from every member: its own log behind its own snapshot."""
    found = []
    ledger = world.referee.ledger.entries
    for node_id in _members(world):
        image = world.nodes[node_id].disk.memory
        base = image.base_index
        if base >= 0 and ledger[base].chain != image.base_chain:
            raise InvariantError("I13", f"node {node_id} holds another state at {base}")
        seen: set[int] = set()
        values: list[int | str | None] = []
        for entry in [*ledger[: base + 1], *image.entries]:
            value = entry.body
            if entry.kind is EntryKind.DATA and isinstance(value, int) and value not in seen:
                seen.add(value)
                if not is_put(value):
                    values.append(value)
        found.append(Drain(node_id, QUEUE, 0, values))
    return found


__all__ = ["AppendCall", "NeedsOperatorError", "drains", "live_on"]
