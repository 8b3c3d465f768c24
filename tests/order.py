"""The order of tests in a run of several workers: long ones first, spread over the workers.

pytest-xdist gives each worker an equal share of the list, counted in tests, and lets one that has
nothing left take over what others have at the end of theirs. In the order of names most of what
takes long is in one share, and a run ends with one core waiting for it. So each share begins with
long modules, as many seconds in each, and ends with quick ones, which are taken over in small
pieces. Tests of a module stay together, since they share fixtures.

Owns the shares; must not know what a test does. Tests pass in any order: a run of one process keeps
that of names.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Final

import pytest

LONG_S: Final = {
    "tests/pipeline": 375,
    "tests/compat/test_foreign_stores.py": 105,
    "tests/compat/test_leader_killed.py": 90,
    "tests/simulation/disk/test_nodes.py": 90,
    "tests/node/nameserver/replica/test_old_copies.py": 70,
    "tests/mutate/test_hunt.py": 70,
    "tests/cluster/test_hostile_fields.py": 65,
    "tests/cluster/test_old_copy.py": 65,
    "tests/compat/test_clients.py": 60,
    "tests/store/test_crash_kill.py": 55,
    "tests/cluster/test_nameserver.py": 55,
    "tests/store/test_crash_faults.py": 50,
    "tests/node/offline/test_restore.py": 50,
    "tests/cluster/test_forged_reports.py": 45,
    "tests/store/test_crash_power.py": 45,
    "tests/simulation/test_seeds.py": 45,
    "tests/chaos/test_hosts.py": 45,
    "tests/cluster/test_ha_old_copy.py": 40,
    "tests/chaos/test_slice.py": 40,
    "tests/store/replicated/test_snapshots.py": 40,
    "tests/cluster/test_kill.py": 40,
    "tests/node/services/bounds/test_half_requests.py": 35,
    "tests/cluster/test_groups.py": 35,
    "tests/raft/simulator/test_seeds.py": 35,
    "tests/node/offline/test_term_process.py": 30,
    "tests/quorumlog/cli/bench/test_bench.py": 30,
    "tests/cluster/test_disks.py": 30,
    "tests/node/services/bounds/test_half_streams.py": 30,
    "tests/cluster/test_bad_input.py": 30,
    "tests/deploy/test_run_guard.py": 30,
    "tests/node/nameserver/replica/test_pysyncobj.py": 25,
    "tests/quorumlog/test_real_cluster.py": 25,
    "tests/node/replication/ha/simulator/test_simulator.py": 25,
    "tests/store/test_crash_cut.py": 25,
    "tests/node/test_hung_disk.py": 25,
    "tests/cluster/test_earlier_build.py": 25,
    "tests/cluster/test_named_producer.py": 20,
    "tests/quorumlog/cli/server/test_store.py": 20,
    "tests/cluster/test_derived.py": 20,
    "tests/node/replication/raft/test_repair_process.py": 20,
    "tests/node/test_members_process.py": 20,
    "tests/node/monitoring/test_http_strangers.py": 20,
    "tests/quorumlog/produce/test_producer_faults.py": 20,
    "tests/cluster/test_transactions.py": 20,
}
"""Seconds of the longest modules on two cores, roughly: a wrong number costs balance only. A folder
stands for all in it: they share an embedded Spark."""
_SLOW_TEST_S: Final = 1.0
"""What a test marked slow takes in other modules."""


@dataclass(slots=True)
class Group:
    """Tests that stay together."""

    seconds: float = 0.0
    tests: "list[pytest.Item]" = field(default_factory=list)


@dataclass(slots=True)
class Share:
    """What one worker begins with."""

    room: int
    """How many tests are still to be put into it."""
    seconds: float = 0.0
    tests: "list[pytest.Item]" = field(default_factory=list)

    def add(self, group: Group) -> None:
        self.room -= len(group.tests)
        self.seconds += group.seconds
        self.tests += group.tests


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Reorder the tests of a worker; each worker must come to the same order."""
    if hasattr(config, "workerinput"):
        items[:] = in_shares(items, config.workerinput["workercount"])


def in_shares(tests: Sequence[pytest.Item], worker_count: int) -> list[pytest.Item]:
    """Return the tests as one list that gives each worker a share which takes as long."""
    groups = list(_groups(tests))
    shares = [Share(room) for room in _sizes(len(tests), worker_count)]
    long = sorted((group for group in groups if group.seconds), key=lambda group: -group.seconds)
    left = [group for group in groups if not group.seconds]
    for group in long:
        fitting = [share for share in shares if share.room >= len(group.tests)]
        if fitting:
            min(fitting, key=lambda share: share.seconds).add(group)
        else:
            left.append(group)
    quick = iter([test for group in left for test in group.tests])
    for share in shares:
        share.tests += [next(quick) for _ in range(share.room)]
    return [test for share in shares for test in share.tests]


def _groups(tests: Iterable[pytest.Item]) -> Iterable[Group]:
    found: dict[str, Group] = {}
    for test in tests:
        path = PurePosixPath(test.nodeid.partition("::")[0])
        name = next((n for n in map(str, path.parents) if n in LONG_S), str(path))
        group = found.setdefault(name, Group(LONG_S.get(name, 0.0)))
        group.tests.append(test)
        if name not in LONG_S and test.get_closest_marker("slow"):
            group.seconds += _SLOW_TEST_S
    return found.values()


def _sizes(count: int, worker_count: int) -> list[int]:
    """Return the sizes of shares as pytest-xdist cuts them: the rest goes to the last ones."""
    sizes = []
    for workers_left in range(worker_count, 0, -1):
        sizes.append(count // workers_left)
        count -= sizes[-1]
    return sizes
