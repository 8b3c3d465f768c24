"""Damage hits every zone of every kind of file, and what it changes is what it says."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from simulation.disk.content import PAGE, Content
from simulation.disk.damage import KINDS, OPERATIONS, ZONES, damage, kind_of
from simulation.machines.machine import Machine
from simulation.world import World

PATHS = {
    "log": "dledger-n0/data/00000000000000000000",
    "log_index": "dledger-n0/index/00000000000000000000",
    "queue": "consumequeue/orders/0/00000000000000000000",
    "inner_batch_queue": "batchconsumequeue/orders/0/00000000000000000000",
    "key_index": "index/20270115080000986",
    "checksum": "checksums/index/20270115080000986",
    "checkpoint": "checkpoint",
    "mark": "marks",
    "hard_state": "raft.0",
    "lives": "lives.1",
    "start": "dledger-n0/start.0",
    "state": "config/topics.json",
    "snapshot": "snapshot.installed",
    "prepared": "dledger-n0/allocating/data-00000000000000065536",
    "aside": "dledger-n0/aside/00000000000000000000",
    "run": "boot_id",
    "ha": "epochFileCheckpoint",
}


@pytest.fixture
def machine() -> Iterator[Machine]:
    with World(1) as world:
        yield world.add_machine()


def fill(machine: Machine, random: Random) -> None:
    for path in PATHS.values():
        file = machine.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(random.randbytes(3 * PAGE) + bytes(PAGE))
    machine.disk.model.adopt(str(machine.root))


def contents(machine: Machine) -> dict[str, bytes]:
    return {path: (machine.root / path).read_bytes() for path in PATHS.values()}


def test_each_kind_has_a_path() -> None:
    assert list(PATHS) == list(KINDS)
    assert {kind: kind_of(path) for kind, path in PATHS.items()} == {kind: kind for kind in KINDS}
    assert kind_of("node.json") == "other"


def test_all_zones_of_all_kinds_are_hit(machine: Machine) -> None:
    random = Random(1)
    fill(machine, random)
    for file in machine.disk.model.files(str(machine.root)):
        file.before = Content(random.randbytes(2 * PAGE), 4 * PAGE)
    seen: Counter[str] = Counter()
    for _ in range(2_500):
        done = damage(machine.disk, str(machine.root), random)
        if done is not None:
            seen[done.name] += 1
    missing = [
        f"{operation}.{kind}.{zone}"
        for operation in OPERATIONS
        for kind in KINDS
        for zone in ZONES
        if not seen[f"{operation}.{kind}.{zone}"]
        and (operation, zone) not in {("stale", "head"), ("stale", "blank"), ("zeroed", "blank")}
    ]
    assert not missing


def test_only_what_it_says_is_changed(machine: Machine) -> None:
    random = Random(2)
    fill(machine, random)
    for _ in range(50):
        before = contents(machine)
        done = damage(machine.disk, str(machine.root), random)
        if done is None:
            continue
        path = str(Path(done.path).relative_to(machine.root))
        changed = [
            one for one in PATHS.values() if (machine.root / one).read_bytes() != before[one]
        ]
        assert changed == [path]
        old, new = before[path], (machine.root / path).read_bytes()
        hi = done.position + done.size_bytes
        assert len(old) == len(new)
        assert old[: done.position] == new[: done.position]
        assert old[hi:] == new[hi:]
        assert machine.disk.model.file(done.path).synced == (new, len(new))


def test_a_page_that_is_not_written_yet_covers_the_damage(machine: Machine) -> None:
    random = Random(3)
    fill(machine, random)
    newer = random.randbytes(4 * PAGE)
    (machine.root / "marks").write_bytes(newer)
    done = None
    while done is None:
        done = damage(machine.disk, str(machine.root), random, kinds=("mark",))
    assert (machine.root / "marks").read_bytes() == newer
    file = machine.disk.model.file(done.path)
    assert (
        file.synced.part(done.position, done.size_bytes)
        != newer[done.position :][: done.size_bytes]
    )
