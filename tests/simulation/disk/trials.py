"""Three whole nodes in a world that die at file-system calls while a writer appends.

A run ends with all nodes up, and with copies of their disks, to be read once the world is over.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from node.errors.common import NodeError
from node.replication.raft.driver import RaftDriver
from node.replication.raft.storage.log import LedgerLog
from quorumlog.pb.admin_pb2 import CreateTopicRequest
from quorumlog.pb.log_pb2 import AppendRequest
from raft.errors import RaftError
from simulation.cluster import Cluster, ClusterNode
from simulation.disk.kinds import FAILING, HARMING, WHOLE
from simulation.injection.disks import DiskInjector
from simulation.kernel.hub import NS_PER_MS
from simulation.plan import Fault
from simulation.rpc.substitute import rpc_parts
from simulation.world import World
from store.config import StoreConfig
from store.durability.fatal import EXIT_INTERNAL_ERROR, EXIT_SYNC_FAILED
from store.errors import StoreError, StoreFullError
from store.files.file_system import FileSystem
from tests.store.records import batch

TOPIC = "orders"
CALM_S = 60.0
APPEND_EVERY_MS = 20
FAULT_EVERY_MS = 700
AFTER_COUNT = 10
SUPERVISED_EVERY_MS = 500
REFUSALS_MAX = 3
FAULTS = {
    "whole": WHOLE,
    "failing": {**WHOLE, **FAILING},
    "harming": {**WHOLE, **HARMING},
    "all": {**WHOLE, **FAILING, **HARMING},
}
"""Which kinds of faults a run has."""


@dataclass
class Outcome:
    """What a run leaves."""

    acked: dict[int, int]
    """Index of each batch that was acknowledged, by its number."""
    trace_hash: int
    event_count: int
    copies: list[tuple[int, str, StoreConfig]]
    """Number, directory and settings of each node that was up at the end."""
    counts: dict[str, int]
    harmed: frozenset[int]
    """Numbers of the nodes whose disk was harmed."""


class DiskTrial:
    """One run."""

    def __init__(
        self, world: World, copies: Path, kinds: Mapping[str, int], **settings: Any
    ) -> None:
        """`kinds`: of faults, with how often one is drawn."""
        self.world, self._copies = world, copies
        self.cluster = Cluster(world, 3, **settings)
        self.random = Random(world.seed)
        self.acked: dict[int, int] = {}
        self.counts: dict[str, int] = {}
        self._kinds = kinds
        self._harmed: list[ClusterNode] = []
        self._injector = DiskInjector(self._count_one, self._start_later, self._harmed.append)
        self._asked_count = 0
        self._is_writing = True
        self._has_faults = True
        self._has_topic = False

    # --- The writer ---

    def _write(self) -> None:
        if not self._is_writing:
            return
        self.world.hub.after(APPEND_EVERY_MS * NS_PER_MS, self._write)
        leader = self.cluster.leader
        if leader is None or leader.process is None or not hasattr(leader.node, "broker"):
            return
        number, self._asked_count = self._asked_count, self._asked_count + 1
        loop = leader.process.loop
        loop.call_soon(lambda: loop.create_task(self._append(leader.node, number)))

    async def _append(self, node: Any, number: int) -> None:
        try:
            if not self._has_topic:
                asked = CreateTopicRequest(topic=TOPIC, queue_count=1)
                await node.broker.topics.create_topic(asked)
                self._has_topic = True
            records = batch(number, number + 1, topic=TOPIC, size_bytes=800)
            receipt = await node.broker.append(AppendRequest(records=records, record_count=1))
        except (RaftError, NodeError, StoreError):
            return  # Refused, or unknown: not acknowledged in any case.
        self.acked[number] = receipt.index

    # --- The faults ---

    def _arm(self) -> None:
        if not self._has_faults:
            return
        random = self.random
        self.world.hub.after(random.randrange(2 * FAULT_EVERY_MS) * NS_PER_MS, self._arm)
        kind = random.choices(list(self._kinds), list(self._kinds.values()))[0]
        one = random.choice(self.cluster.nodes)
        if kind in HARMING:
            one = self.cluster.nodes[self.world.seed % len(self.cluster.nodes)]
        fault = Fault(0, kind, one.number, random.choice((20, 200, 1_000, 3_000)), 0)
        self._injector.strike(kind, one, fault, random)

    def _count_one(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1

    def _start_later(self, one: ClusterNode, delay_ms: int) -> None:
        self.world.hub.after(delay_ms * NS_PER_MS, self._start, one)

    def _supervise(self) -> None:
        """Start again what has ended by itself."""
        for one in self.cluster.nodes:
            process = one.process
            if process is not None and not process.is_alive and one.machine.has_power:
                ended = process.exit_code is not None or process.error is not None
                if ended and not self._is_refusing(one):
                    self._start(one)
        self.world.hub.after(SUPERVISED_EVERY_MS * NS_PER_MS, self._supervise)

    def _is_refusing(self, one: ClusterNode) -> bool:
        """Whether a node with a harmed disk has refused to start several times in a row."""
        ends = [process.error for process in one.processes[-REFUSALS_MAX:]]
        is_harmed = one in self._harmed
        refused = all(isinstance(error, StoreError | NodeError) for error in ends)
        return is_harmed and len(ends) == REFUSALS_MAX and refused

    def _start(self, one: ClusterNode) -> None:
        if not one.machine.has_power:
            one.machine.power_on()
        if not one.is_up:
            one.start()

    # --- A run ---

    def run(self, seconds: float) -> Outcome:
        world = self.world
        self.cluster.start()
        self._write()
        world.run_until(lambda: bool(self.acked), CALM_S)
        self._supervise()
        self._arm()
        world.run_s(seconds)
        self._has_faults = False
        for one in self.cluster.nodes:
            one.machine.disk.heal()
            self._start(one)
        wanted = len(self.acked) + AFTER_COUNT
        if not world.run_until(lambda: len(self.acked) >= wanted, CALM_S):
            raise AssertionError(f"no appends after the heal: {self._state()}")
        self._is_writing = False
        if not world.run_until(self._is_even, CALM_S):
            raise AssertionError(f"the replicas differ after the heal: {self._state()}")
        self._check_ends()
        return self._outcome()

    def _check_ends(self) -> None:
        """Raise if a node ended by itself without a reason of its disk."""
        may_fail = not set(self._kinds) <= set(WHOLE)
        for one in self.cluster.nodes:
            codes = [None, 0]
            codes += [EXIT_SYNC_FAILED] if may_fail else []
            codes += [EXIT_INTERNAL_ERROR] if one in self._harmed else []  # Damage, when needed.
            for process in one.processes:
                error, code = process.error, process.exit_code
                is_named = isinstance(error, StoreError | NodeError | OSError)
                is_full = isinstance(error, StoreFullError)
                if error is not None and not is_full and not (may_fail and is_named):
                    raise error
                assert code in codes, f"{process.name} ended with {code}: {self._state()}"

    def _standing(self) -> list[ClusterNode]:
        return [one for one in self.cluster.nodes if one.is_up or one not in self._harmed]

    def _is_even(self) -> bool:
        nodes = self._standing()
        drivers = [driver for node in nodes if isinstance(driver := node.driver, RaftDriver)]
        if len(drivers) < len(nodes):
            return False
        ends = {(driver.log.last_index, driver.log.store.durable_index) for driver in drivers}
        (end, *more) = ends
        return not more and end[0] == end[1] >= max(self.acked.values())

    def _state(self) -> list[object]:
        lines: list[object] = [str(line) for line in self.world.log[-20:]]
        for one in self.cluster.nodes:
            end = [(process.exit_code, repr(process.error)) for process in one.processes]
            lines.append((one.number, one.is_up, end))
        return lines

    def _outcome(self) -> Outcome:
        copies, standing = [], self._standing()
        for one in self.cluster.nodes:
            one.kill()
        self.world.run_s(0.001)
        for one in standing:
            copy = self._copies / f"n{one.number}"
            one.machine.disk.copy_to(copy)
            config = self.cluster.settings_of(one).store_config()
            copies.append((one.number, str(copy / "data"), config))
        hub = self.world.hub
        return Outcome(
            self.acked,
            hub.trace_hash,
            hub.event_count,
            copies,
            self.counts,
            frozenset(one.number for one in self._harmed),
        )


def run_trial(seed: int, copies: Path, kinds: Mapping[str, int], seconds: float = 10) -> Outcome:
    """Run one seed."""
    with World(seed) as world, rpc_parts(world):
        return DiskTrial(world, copies, kinds).run(seconds)


def check_copies(outcome: Outcome) -> None:
    """Raise unless the logs of all copies are equal and have all that was acknowledged."""
    found: list[tuple[int, object, list[bytes]]] = []
    for number, copy, config in outcome.copies:
        try:
            found.append(_read(number, copy, config))
        except StoreError:
            if number not in outcome.harmed:  # Else it ran, and its disk was harmed under it.
                raise
    assert len(found) >= 2, "two disks are damaged, and one was harmed"
    ends = {(last, chain) for last, chain, _ in found}
    assert len(ends) == 1, f"the logs differ: {ends}"
    bodies = found[0][2]
    for number, index in outcome.acked.items():
        wanted = b"%08d....." % number
        body = bodies[index] if index < len(bodies) else b""
        assert wanted in body, f"{number} at {index} is lost"


def _read(number: int, copy: str, config: StoreConfig) -> tuple[int, object, list[bytes]]:
    """Return the last index of a log, the checksum of the chain to it, and all entries."""
    with LedgerLog.open(
        copy, config, cluster_id="world", node_id=number, on_fatal=_must_not_die
    ) as log:
        log.start_at(-1)
        bodies = [log.read_raw(at, at + 1) for at in range(log.last_index + 1)]
        return log.last_index, log.chain_at(log.last_index), bodies


def _must_not_die(error: BaseException) -> None:
    raise error


# --- Many of them, in a process of their own: a world is never freed ---


def plant(name: str) -> None:
    """Plant a defect in the file system port; "none" plants nothing."""
    real = FileSystem.sync
    defects: dict[str, Callable[[], None]] = {
        "none": lambda: None,
        "no_sync": lambda: setattr(FileSystem, "sync", lambda fs, fd, path: None),
        "no_directory_sync": lambda: setattr(FileSystem, "sync_directory", lambda fs, path: None),
        "no_vote_sync": lambda: setattr(
            FileSystem,
            "sync",
            lambda fs, fd, path: None if "/raft." in path else real(fs, fd, path),
        ),
        "no_log_sync": lambda: setattr(
            FileSystem,
            "sync",
            lambda fs, fd, path: None if "/data/0" in path else real(fs, fd, path),
        ),
    }
    defects[name]()


def try_seed(seed: int, kinds: Mapping[str, int]) -> dict[str, Any]:
    """Run and check one seed; return what is known of it."""
    copies = Path(tempfile.mkdtemp(prefix="world-copies-"))
    try:
        outcome = run_trial(seed, copies, kinds)
        check_copies(outcome)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the result.
        return {"seed": seed, "problem": f"{type(error).__name__}: {error}"}
    finally:
        shutil.rmtree(copies)
    return {
        "seed": seed,
        "problem": "",
        "acked_count": len(outcome.acked),
        "counts": outcome.counts,
        "trace": f"{outcome.trace_hash:016x}",
        "event_count": outcome.event_count,
    }


def main() -> None:
    """Run seeds: `python -m tests.simulation.disk.trials DEFECT FAULTS [SEED, ...]`."""
    plant(sys.argv[1])
    results = [try_seed(seed, FAULTS[sys.argv[2]]) for seed in json.loads(sys.argv[3])]
    print(json.dumps(results))


if __name__ == "__main__":
    main()
