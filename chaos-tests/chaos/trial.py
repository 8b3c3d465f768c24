"""One scenario run once: load, fault, healing, drain, verdict.

Owns the order of these, and what counts as failure: any exception, any violation, any proof that is
missing. Must not choose scenarios or keep clusters. What it returns is all that a report needs.
"""

import asyncio
import time
import traceback
from dataclasses import dataclass, field
from random import Random
from typing import Final

import quorumlog
from chaos.clients import Clients
from chaos.errors import NotPossibleHereError, NotSoError
from chaos.load import CONNECT_TIMEOUT_MS, Load
from chaos.losses import Losses, find_losses, reported, without
from chaos.profile import Mode, Options
from chaos.recorder import Recorder, now_ns
from chaos.scenario import SHOWN_COUNT, Context, Scenario
from chaos.target import Target
from chaos.verdict import caught_up, drain, judge, leaders_of, same_digests
from raft.simulator.history import Value

BEFORE_COUNT: Final = 200
AFTER_COUNT: Final = 100
HEAL_TIMEOUT_S: Final = 90.0
SCENARIO_TIMEOUT_S: Final = 300.0
SOCKET_SLACK: Final = 6
"""Sockets that a node may have more than before: a client that has just begun to reconnect."""


@dataclass(slots=True)
class Result:
    """What became of one trial."""

    scenario: Scenario
    seed: int
    verdict: str = "passed"
    """Or `failed`, `skipped`."""
    why: str = ""
    violations: list[str] = field(default_factory=list)
    fault_counts: dict[str, int] = field(default_factory=dict)
    outcomes: dict[str, int] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)
    proofs: list[str] = field(default_factory=list)
    failovers_ms: list[float] = field(default_factory=list)
    recovery_ms: float | None = None
    """From the end of all faults until every node is ready, level, and appends are acked."""
    acked_count: int = 0
    lost_count: int = 0
    """Acked, and gone although the mode promises more."""
    lost_reported_count: int = 0
    """Acked by an async master, gone, and reported."""
    group_missed_count: int = 0
    took_s: float = 0.0
    recorder: Recorder = field(default_factory=Recorder)

    @property
    def operation_count(self) -> int:
        """Operations that were checked."""
        return sum(self.outcomes.values())


class Trial:
    """One run of one scenario on a cluster that is whole."""

    def __init__(
        self, scenario: Scenario, cluster: Target, options: Options, seed: int, topic: str
    ) -> None:
        self._scenario, self._cluster, self._options = scenario, cluster, options
        self._topic, self._seed = topic, seed
        self.result = Result(scenario, seed)

    async def run(self) -> Result:
        """Run it; what goes wrong is in the result, and never raised."""
        result, began = self.result, time.monotonic()
        try:
            async with asyncio.timeout(SCENARIO_TIMEOUT_S * self._options.time_scale):
                await self._run()
        except NotPossibleHereError as reason:
            result.verdict, result.why = "skipped", str(reason)
        except NotSoError as reason:
            result.verdict, result.why = "failed", str(reason)
        except Exception:  # noqa: BLE001 - whatever it is, the run goes on and shows it.
            result.verdict, result.why = "failed", traceback.format_exc()
        result.took_s = time.monotonic() - began
        result.lost_count = sum(found.startswith("lost") for found in result.violations)
        result.outcomes = dict(result.recorder.outcomes)
        result.errors = dict(result.recorder.errors)
        if result.verdict == "failed":
            result.recorder.note("failure", result.why.strip().splitlines()[-1])
        return result

    async def _run(self) -> None:
        result, cluster, recorder = self.result, self._cluster, self.result.recorder
        load = Load(cluster.bootstrap, self._topic, recorder, pause_s=self._scenario.pause_s)
        async with load:
            context = Context(
                cluster,
                load,
                recorder,
                Random(self._seed),
                self._options,
                result.fault_counts,
                result.proofs,
                violations=result.violations,
            )
            await context.acked(BEFORE_COUNT)
            sockets = await context.do(cluster.socket_counts)
            recorder.note("phase", "fault")
            try:
                await self._scenario.body(context)
            finally:
                result.acked_count = load.clients.acked_count
                recorder.note("phase", "heal")
                await asyncio.to_thread(cluster.heal)
                healed_ns = now_ns()
            await asyncio.to_thread(cluster.wait_ready, HEAL_TIMEOUT_S * self._options.time_scale)
            await context.acked(AFTER_COUNT)
            recorder.note("phase", "drain")
            await load.stop()
            result.acked_count = load.clients.acked_count
            result.failovers_ms = _failovers(context)
            lost = await self._judge(context, healed_ns)
            patience_s = HEAL_TIMEOUT_S * self._options.time_scale
            missed = await load.groups_caught_up(patience_s, lost=lost)
            result.group_missed_count = len(missed)
            await _sockets_are_back(context, sockets)
        if missed:
            raise NotSoError(f"a group missed {len(missed)} messages, as {sorted(missed)[:5]}")
        if not result.proofs:
            raise NotSoError("the scenario proved nothing")
        if not load.clients.read_count:
            raise NotSoError("nothing was read")

    async def _judge(self, context: Context, healed_ns: int) -> frozenset[Value]:
        """Compare all replicas, and let the checkers judge the history.

        Returns what was lost as the mode allows."""
        result, cluster, nodes = self.result, self._cluster, self._cluster.node_ids
        scale = self._options.time_scale
        async with quorumlog.connect(
            cluster.bootstrap, connect_timeout_ms=CONNECT_TIMEOUT_MS
        ) as client:
            index = await caught_up(client, nodes, HEAL_TIMEOUT_S * scale)
            result.recovery_ms = (now_ns() - healed_ns) / 1e6
            if self._options.mode is Mode.RAFT:
                # A plain log has no chain; its replicas are compared record by record below.
                await same_digests(client, nodes, index)
            last = context.load.clients.last_index
            is_async = self._options.mode is Mode.ASYNC_MASTER
            # What was acked last may be what an async master lost: nobody waits for it.
            last = index if is_async else max(index, last)
            drains = await drain(client, self._topic, nodes, last)
            result.recorder.drains, result.recorder.notes = drains, context.notes
            found = Losses(frozenset(), ())
            if is_async:
                found = find_losses(context.load.clients.places, drains, await reported(client))
                result.lost_reported_count = len(found.lost)
        operations = result.recorder.operations
        if found.lost:
            operations = without(operations, found.lost)
        judged = await asyncio.to_thread(judge, operations, drains, context.notes)
        result.violations = [*found.problems, *judged]
        paths = {node: cluster.local.log_path(node) for node in nodes}
        leaders, breaches = await asyncio.to_thread(leaders_of, paths)
        result.violations += breaches
        for term, node in leaders.items():
            result.recorder.note("leader", f"node {node} in term {term}")
        if result.violations:
            shown = "\n".join(result.violations[:SHOWN_COUNT])
            raise NotSoError(f"{len(result.violations)} violations:\n{shown}")
        return found.lost


async def _sockets_are_back(context: Context, before: dict[int, int]) -> None:
    """Demand that no node has many more sockets than before the fault (I16)."""

    def are_back() -> bool:
        counts = context.target.socket_counts()
        return all(n <= before.get(node, n) + SOCKET_SLACK for node, n in counts.items())

    await context.until(f"sockets as before, {before}", are_back)


def _failovers(context: Context) -> list[float]:
    clients: Clients = context.load.clients
    found = []
    for failover in context.failovers:
        later = [at for term, at in clients.first_ack_of_term.items() if term > failover.term]
        if later:
            found.append((min(later) - failover.began_ns) / 1e6)
    return found
