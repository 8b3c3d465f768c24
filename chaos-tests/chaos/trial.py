"""One scenario run once: load, fault, healing, drain, verdict.

Owns the order of these, and the kinds of failure: any exception, any violation, any missing proof,
an unexpected end of a process, a missed deadline. Must not choose scenarios or keep clusters. The
result has all that a report needs.
"""

import asyncio
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Final

import quorumlog
from chaos.clients import Clients
from chaos.errors import NotPossibleHereError, NotSoError, unless_demanded
from chaos.gates import factor_of, gates_of, late_in_trial
from chaos.load import CONNECT_TIMEOUT_MS, Load
from chaos.losses import Losses, find_losses, read_and_gone, reported, without
from chaos.pace import Pace
from chaos.profile import ClusterMode, ScenarioOptions
from chaos.recorder import Recorder, now_ns
from chaos.scenario import SHOWN_COUNT, Scenario, ScenarioContext
from chaos.target import Target
from chaos.usage import Usage
from chaos.verdict import caught_up, drain, judge, leaders_of, same_digests
from checkers.checker import check_values
from checkers.history import Value
from quorumlog.admin.types import HaLoss
from quorumlog.cluster.transport import Transport

BEFORE_COUNT: Final = 200
AFTER_COUNT: Final = 100
HEAL_TIMEOUT_S: Final = 90.0
SCENARIO_TIMEOUT_S: Final = 300.0


@dataclass(slots=True)
class TrialResult:
    """Result of one trial."""

    scenario: Scenario
    seed: int
    transport: Transport
    """Transport of the clients."""
    verdict: str = "passed"
    """One of `passed`, `failed`, `skipped`."""
    why: str = ""
    violations: list[str] = field(default_factory=list)
    fault_counts: dict[str, int] = field(default_factory=dict)
    outcomes: dict[str, int] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)
    proofs: list[str] = field(default_factory=list)
    failovers_ms: list[float] = field(default_factory=list)
    recovery_ms: float | None = None
    """Time from the end of all faults, when all processes answer, until every node is ready and
    level, and appends are acked."""
    restarts_ms: list[float] = field(default_factory=list)
    """Times from the start of a killed node, with no other fault, until it is ready. Shown, not
    judged: most of it is the start of an interpreter beside a cluster that has all cores."""
    patience_ms: float = 0.0
    """Additional wait before the nodes of its cluster elect, compared to the default."""
    late: list[str] = field(default_factory=list)
    """Times beyond the gates. They fail the trial where times are judged."""
    acked_count: int = 0
    lost_count: int = 0
    """Messages acked, and lost although the mode promises more."""
    lost_reported_count: int = 0
    """Messages acked by an async master, lost, and reported."""
    group_missed_count: int = 0
    slowness: float = 1.0
    """Slowness of the machine, before the cluster was there or meanwhile: gates are wider by this
    factor, at most twice as wide."""
    memory_size_bytes: dict[int, int] = field(default_factory=dict)
    """Memory of each node's process in the end, without mapped files."""
    took_s: float = 0.0
    recorder: Recorder = field(default_factory=Recorder)

    @property
    def recoveries_ms(self) -> list[float]:
        """Recovery times that have a gate."""
        return [] if self.recovery_ms is None else [self.recovery_ms]

    @property
    def operation_count(self) -> int:
        """Number of operations that were checked."""
        return sum(self.outcomes.values())


class Trial:
    """One run of one scenario on a cluster that is whole."""

    def __init__(
        self,
        scenario: Scenario,
        cluster: Target,
        options: ScenarioOptions,
        seed: int,
        topic: str,
        slowness: float = 1.0,
        on_phase: Callable[[str], None] = lambda _phase: None,
    ) -> None:
        """`slowness` of the machine was measured before the cluster was started. `on_phase` is
        called as a phase begins."""
        self._on_phase = on_phase
        self._scenario, self._cluster, self._options = scenario, cluster, options
        self._topic, self._seed, self._slowness = topic, seed, slowness
        self.result = TrialResult(
            scenario,
            seed,
            options.transport_of(seed),
            patience_ms=scenario.profile.patience_s * 1000,
            slowness=slowness,
        )

    @property
    def may_lose(self) -> bool:
        """Whether masters may lose messages that they acked alone, if they report it."""
        return self._options.mode is ClusterMode.ASYNC_MASTER or self._scenario.profile.loses

    async def run(self) -> TrialResult:
        """Run the scenario; problems are in the result, and never raised."""
        result, began = self.result, time.monotonic()
        try:
            async with asyncio.timeout(SCENARIO_TIMEOUT_S * self._options.time_scale):
                await self._run()
        except NotPossibleHereError as reason:
            result.verdict, result.why = unless_demanded(reason)
        except NotSoError as reason:
            result.verdict, result.why = "failed", str(reason)
        except Exception:  # noqa: BLE001 - whatever it is, the run goes on and shows it.
            result.verdict, result.why = "failed", traceback.format_exc()
        if ends := await asyncio.to_thread(self._cluster.unexpected_ends):
            result.violations += ends
            result.verdict, result.why = "failed", "\n".join(filter(None, [*ends, result.why]))
        result.took_s = time.monotonic() - began
        result.lost_count = sum(found.startswith("lost") for found in result.violations)
        result.outcomes = dict(result.recorder.outcomes)
        result.errors = dict(result.recorder.errors)
        if result.verdict == "failed":
            result.recorder.note("failure", result.why.strip().splitlines()[-1])
        return result

    async def _run(self) -> None:
        result, cluster, recorder = self.result, self._cluster, self.result.recorder
        load = Load(
            cluster.bootstrap,
            self._topic,
            recorder,
            transport=result.transport,
            pause_s=self._scenario.pause_s,
        )
        async with load:
            context = ScenarioContext(
                cluster,
                load,
                recorder,
                Random(self._seed),
                self._options,
                result.fault_counts,
                result.proofs,
                violations=result.violations,
                factor=factor_of(self._slowness),
            )
            await context.acked(BEFORE_COUNT)
            usage = await context.do(cluster.usage)
            losses = frozenset[HaLoss]()
            if self.may_lose:
                losses = frozenset(await reported(load.clients.client))
            pace = Pace(one.pid for one in usage.values())
            self._begin("fault")
            try:
                await self._scenario.body(context)
            finally:
                result.acked_count = load.clients.acked_count
                self._begin("heal")
                await asyncio.to_thread(cluster.heal)
            timeout_s = HEAL_TIMEOUT_S * self._options.time_scale
            # The start of interpreters, beside a cluster that has all cores, is no recovery.
            await asyncio.to_thread(cluster.wait_answering, timeout_s)
            healed_ns = now_ns()
            await asyncio.to_thread(cluster.wait_ready, timeout_s)
            await context.acked(AFTER_COUNT)
            self._begin("drain")
            await load.stop()
            result.acked_count = load.clients.acked_count
            result.failovers_ms = _failovers(context)
            result.restarts_ms = context.restarts_ms
            result.slowness = max(self._slowness, pace.slowness)
            lost = await self._judge(context, healed_ns, losses)
            result.slowness = max(self._slowness, pace.slowness)
            patience_s = HEAL_TIMEOUT_S * self._options.time_scale
            missed = await load.groups_caught_up(patience_s, lost=lost)
            result.group_missed_count = len(missed)
            await _usage_is_back(context, usage)
            after = await context.do(cluster.usage)
            result.memory_size_bytes = {one.pid: one.memory_size_bytes for one in after.values()}
        if missed:
            raise NotSoError(f"a group missed {len(missed)} messages, as {sorted(missed)[:5]}")
        if not result.proofs:
            raise NotSoError("the scenario proved nothing")
        if not load.clients.read_count:
            raise NotSoError("nothing was read")
        result.late = late_in_trial(result, gates_of(self._options.mode))
        if result.late and self._options.judges_times:
            result.violations += result.late
            raise NotSoError("\n".join(result.late))

    def _begin(self, phase: str) -> None:
        self.result.recorder.note("phase", phase)
        self._on_phase(phase)

    async def _judge(
        self, context: ScenarioContext, healed_ns: int, known: frozenset[HaLoss]
    ) -> frozenset[Value]:
        """Compare all replicas, and let the checkers judge the history.

        Return the values that were lost as the mode allows."""
        result, cluster, nodes = self.result, self._cluster, self._cluster.node_ids
        scale = self._options.time_scale
        async with quorumlog.connect(
            cluster.bootstrap, connect_timeout_ms=CONNECT_TIMEOUT_MS
        ) as client:
            index = await caught_up(client, nodes, HEAL_TIMEOUT_S * scale)
            result.recovery_ms = (now_ns() - healed_ns) / 1e6
            if self._options.mode is ClusterMode.RAFT:
                # A plain log has no chain; its replicas are compared record by record below.
                await same_digests(client, nodes, index)
            last = context.load.clients.last_index
            # The last acked message may be one that an async master lost: do not wait for it.
            last = index if self.may_lose else max(index, last)
            drains = await drain(client, self._topic, nodes, last)
            result.recorder.drains, result.recorder.notes = drains, context.notes
            losses, gone = Losses(frozenset(), ()), frozenset[Value]()
            operations = result.recorder.operations
            if self.may_lose:
                said = [loss for loss in await reported(client) if loss not in known]
                losses = find_losses(context.load.clients.places, drains, said, operations)
                result.lost_reported_count = len(losses.lost)
                gone = losses.lost | read_and_gone(operations, drains)
        problems = list(losses.problems)
        if gone:
            # A message that was read may be lost now; it must have been sent all the same.
            problems += map(str, check_values(operations))
            operations = without(operations, gone)
        judged = await asyncio.to_thread(
            judge, operations, drains, context.notes, may_expire=self._scenario.profile.forgets
        )
        result.violations = [*problems, *judged]
        paths = {node: cluster.local.log_path(node) for node in nodes}
        leaders, breaches = await asyncio.to_thread(leaders_of, paths)
        result.violations += breaches
        for term, node in leaders.items():
            result.recorder.note("leader", f"node {node} in term {term}")
        if result.violations:
            shown = "\n".join(result.violations[:SHOWN_COUNT])
            raise NotSoError(f"{len(result.violations)} violations:\n{shown}")
        return losses.lost


async def _usage_is_back(context: ScenarioContext, before: dict[int, Usage]) -> None:
    """Demand that no node holds much more than before the fault (I16)."""
    excess: list[str] = []

    def is_back() -> bool:
        now = context.target.usage()
        excess[:] = [
            f"node {node}: {what}"
            for node, one in now.items()
            if node in before
            for what in one.excess(before[node])
        ]
        return not excess

    try:
        await context.until("as few descriptors and threads as before", is_back)
    except NotSoError as error:
        raise NotSoError(f"I16: {error}: {'; '.join(excess)}") from error


def _failovers(context: ScenarioContext) -> list[float]:
    clients: Clients = context.load.clients
    failovers = []
    for failover in context.failovers:
        later = [at for term, at in clients.first_ack_of_term.items() if term > failover.term]
        if later:
            failovers.append((min(later) - failover.began_ns) / 1e6)
    return failovers
