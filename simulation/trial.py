"""One case run once: whole nodes, clients, faults, healing, drain and judgement.

Owns the phases. The load and the checkers are those of the fault suites (`chaos-tests/chaos`): what
judges real processes judges these, too.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Set
from dataclasses import dataclass
from random import Random
from typing import Final, cast

from chaos.load import Load
from chaos.log_files import log_files
from chaos.losses import find_losses, read_and_gone, reported, without
from chaos.recorder import Recorder
from chaos.verdict import caught_up, drain, judge, same_digests

import quorumlog
from checkers.checker import check_values
from checkers.history import Value
from node.errors.common import NodeError
from quorumlog.cluster.transport import Transport
from simulation.cluster import Cluster
from simulation.coverage import SOMETIMES
from simulation.half_batches import apart
from simulation.injection import Injector
from simulation.kernel.process import Process
from simulation.operator import promote_afresh, promote_where_none_serves
from simulation.plan import FAILING, Case
from simulation.raft.coverage import Coverage
from simulation.rpc.substitute import rpc_parts
from simulation.world import World
from store.durability.fatal import EXIT_INTERNAL_ERROR, EXIT_SYNC_FAILED
from store.errors import StoreError, StoreFullError

TOPIC: Final = "orders"
BEFORE_COUNT: Final = 5
AFTER_COUNT: Final = 20
CALM_S: Final = 60.0
"""Time in which a healed cluster has to serve again, whatever happened before."""
LIMIT_S: Final = 900.0
"""Time in which a run has to be over, of its own time."""
TAIL_COUNT: Final = 60


@dataclass(slots=True)
class Report:
    """Result of one run."""

    seed: int
    problem: str
    """What was wrong; empty for a run that passed."""
    simulated_ns: int
    event_count: int
    fault_count: int
    operation_count: int
    acked_count: int
    trace_hash: int
    coverage: Coverage
    log_tail: tuple[str, ...] = ()
    trace_tail: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether nothing was wrong."""
        return not self.problem


class Trial:
    """One run."""

    def __init__(self, case: Case, world: World) -> None:
        self._case, self.world = case, world
        self.coverage: Final = Coverage(SOMETIMES)
        options = case.options
        self.cluster: Final = Cluster(
            world,
            options.node_count,
            flush=options.flush,
            replication=options.replication,
            **({} if options.replication == "raft" else {"copies": options.copies}),
        )
        self.injector: Final = Injector(self.cluster, self.coverage)
        self._clients = world.add_machine()
        self._recorder: Recorder | None = None
        self._load: Load | None = None
        self._violations: list[str] = []

    def run(self) -> None:
        """Run it. Raises what went wrong."""
        world = self.world
        self.cluster.start()
        process = self._clients.run("clients", self._drive)
        is_over = world.run_until(lambda: not process.is_alive, LIMIT_S)
        if process.error is not None:
            raise process.error
        if not is_over:
            raise TimeoutError(f"the clients are not done after {LIMIT_S:g} s")
        if self._violations:
            raise AssertionError("\n".join(self._violations[:10]))

    # --- The clients, on a machine of their own ---

    async def _drive(self) -> int:
        options = self._case.options
        recorder = self._recorder = Recorder()
        load = self._load = Load(
            ",".join(self.cluster.servers),
            TOPIC,
            recorder,
            transport=cast(Transport, options.transport),
            pause_s=1 / options.rate_per_s,
        )
        async with load:
            await load.acked(BEFORE_COUNT, CALM_S)
            operator = None
            if options.replication != "raft":
                random = Random(options.seed)
                operator = asyncio.create_task(promote_where_none_serves(self.cluster, random))
            self.injector.plan(self._case.faults)
            await asyncio.sleep(options.duration_ms / 1000)
            self.injector.heal()
            await load.acked(AFTER_COUNT, CALM_S)
            if operator is not None:
                await promote_afresh(self.cluster)
                operator.cancel()
                await load.acked(AFTER_COUNT, CALM_S)
            await load.stop()
            lost = await self._judge(load, recorder)
            missed = await load.groups_caught_up(CALM_S, lost=lost)
            if missed:
                self._violations.append(
                    f"a group missed {len(missed)} messages, as {sorted(missed)[:5]}"
                )
        return 0

    async def _judge(self, load: Load, recorder: Recorder) -> frozenset[Value]:
        """Compare replicas and judge the history; return the messages that an async master lost."""
        replication = self._case.options.replication
        harmed = self.injector.harmed
        nodes = tuple(one.number for one in self.cluster.nodes if one.is_up or one not in harmed)
        async with quorumlog.connect(",".join(self.cluster.servers)) as client:
            numbers = {one.number for one in harmed}
            index = await caught_up(client, nodes, CALM_S, numbers)
            if replication == "raft":  # A plain log has no chain: its records are compared below.
                await same_digests(client, nodes, index)
            if replication != "async_master":  # It may have lost the newest one.
                index = max(index, load.clients.last_index)
            recorder.drains = drains = await drain(client, TOPIC, nodes, index, numbers)
            reports = await reported(client) if replication == "async_master" else []
        operations, lost = recorder.operations, frozenset[Value]()
        if replication == "async_master":
            losses = find_losses(load.clients.places, drains, reports, operations)
            lost, gone = losses.lost, losses.lost | read_and_gone(operations, drains)
            self.coverage.hit("loss_reported", len(lost))
            self._violations += losses.problems
            if gone:  # A message that was read and is lost now was sent all the same.
                self._violations += map(str, check_values(operations))
                operations = without(operations, gone)
        if replication != "raft" and any("power" in fault.kind for fault in self._case.faults):
            operations, drains = apart(operations, drains)
        self._violations += judge(operations, drains, [])
        return lost

    # --- What must be true of the whole run ---

    def check_leaders(self) -> None:
        """Raise if two nodes led one term (I1)."""
        leaders: dict[int, str] = {}
        for line in self.world.log:
            if line.event == "role" and line.fields["role"] in ("leader", "master"):
                name, term = line.process, line.fields["term" if "term" in line.fields else "epoch"]
                other = leaders.setdefault(term, name)
                if other != name:
                    raise AssertionError(f"I1: {other} and {name} both lead term {term}")
        assert leaders, "nodes log which node leads, or nothing proves I1"
        self.coverage.hit("leader_changed", len(leaders) - 1)

    def note_states(self) -> None:
        """Count what the cluster and its clients went through."""
        events = Counter(line.event for line in self.world.log)
        rolled = [one for one in self.cluster.nodes if len(log_files(one.data)) > 1]
        found = {"snapshot_received": events["received a snapshot"], "log_rolled": len(rolled)}
        clients = getattr(self._load, "clients", None)  # Not there before they have connected.
        if self._recorder is not None and clients is not None:
            outcomes = self._recorder.outcomes
            found |= {
                "append_acked": outcomes["append ok"],
                "append_not_applied": outcomes["append not applied"],
                "append_unknown": outcomes["append unknown"],
                "stored_once_sent_twice": sum(p.is_duplicate for p in clients.places.values()),
                "read": outcomes["read ok"],
                "followed": outcomes["poll ok"],
                "group_read": len(clients.group_seen),
            }
        for name, count in found.items():
            self.coverage.hit(name, count)

    def check_ends(self) -> None:
        """Raise if a node ended on its own that had no reason to."""
        kinds = {fault.kind for fault in self._case.faults}
        for one in self.cluster.nodes:
            for process in one.processes:
                check_end(process, kinds, is_harmed=one in self.injector.harmed)

    def report(self, problem: str) -> Report:
        """Return what is known of the run."""
        hub, recorder = self.world.hub, self._recorder
        is_shown = bool(problem) or hub.trace is not None
        return Report(
            self._case.options.seed,
            problem,
            hub.now_ns,
            hub.event_count,
            self.injector.done_count,
            len(recorder.operations) if recorder is not None else 0,
            getattr(getattr(self._load, "clients", None), "acked_count", 0),
            hub.trace_hash,
            self.coverage,
            tuple(str(line) for line in self.world.log[-TAIL_COUNT:]) if is_shown else (),
            tuple((hub.trace or [])[-TAIL_COUNT:]),
        )


def check_end(process: Process, kinds: Set[str], *, is_harmed: bool = False) -> None:
    """Raise the error with which a process ended on its own, but for one by faults of `kinds`."""
    may_fail = is_harmed or not kinds.isdisjoint(FAILING)
    excused = (StoreError, NodeError, OSError) if may_fail else (StoreFullError,)
    if isinstance(process.error, excused) and (may_fail or "disk_full" in kinds):
        return
    if process.error is not None:
        raise process.error
    codes = [None, 0]
    codes += [EXIT_SYNC_FAILED] if may_fail else []
    codes += [EXIT_INTERNAL_ERROR] if is_harmed else []  # Damage, when needed.
    if process.exit_code not in codes:
        raise AssertionError(f"{process.name} ended with exit code {process.exit_code}")


def run_case(case: Case, *, is_traced: bool = False) -> Report:
    """Run a case to its end, or to what is wrong first."""
    with World(case.options.seed, is_traced=is_traced) as world, rpc_parts(world):
        trial = Trial(case, world)
        problem = ""
        try:
            trial.run()
            trial.check_leaders()
            trial.check_ends()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding.
            problem = f"{type(error).__name__}: {error}"
        trial.note_states()
        return trial.report(problem)
