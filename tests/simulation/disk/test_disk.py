"""The disk of a machine, as code of a process and the injector meet it."""

import asyncio
import errno
import mmap
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from simulation.disk.content import PAGE
from simulation.disk.faults import ErrorRule, Trap
from simulation.kernel.process import Process
from simulation.machines.machine import Machine
from simulation.world import World
from store.durability.identity import DirectoryLock, RunMarker
from store.errors import FileSystemError, StoreFullError, SyncFailedError
from store.files.file_system import FileSystem

NAME = "file"


@pytest.fixture
def world() -> Iterator[World]:
    with World(1) as world:
        yield world


@pytest.fixture
def machine(world: World) -> Machine:
    return world.add_machine()


def run(machine: Machine, work: Callable[[], Any], *, stays: bool = False) -> Process:
    """Run a function as a process; it ends afterwards unless it `stays`."""

    async def main() -> int:
        work()
        while stays:
            machine.hub.wait()
        return 0

    process = machine.run("worker", main)
    machine.hub.run(machine.hub.now_ns + 10**9)
    if process.error is not None:
        raise process.error
    return process


def make(fs: FileSystem, path: str, data: bytes) -> int:
    fd = fs.open(path, create=True)
    fs.allocate(fd, path, len(data))
    fs.write_at(fd, path, 0, data)
    return fd


def write_file(
    machine: Machine, data: bytes, *, is_synced: bool, then: Callable[[int], object] | None = None
) -> None:
    """Make a file; sync it and its name if asked."""
    fs, path = FileSystem(), str(machine.root / NAME)

    def work() -> None:
        fd = make(fs, path, data)
        if is_synced:
            fs.sync(fd, path)
            fs.sync_directory(str(machine.root))
        if then is not None:
            then(fd)

    run(machine, work)


def content(machine: Machine) -> bytes | None:
    path = machine.root / NAME
    return path.read_bytes() if path.exists() else None


def test_unsynced_bytes_may_be_gone_after_a_power_loss() -> None:
    data = b"x" * 8 * PAGE
    seen: set[bytes | None] = set()
    for seed in range(30):
        with World(seed) as world:
            machine = world.add_machine()
            write_file(machine, data, is_synced=False)
            machine.lose_power()
            seen.add(content(machine))
    assert None in seen, "the name"
    assert data in seen, "all of it"
    assert len(seen) > 4, "some of its pages"


def test_maps_of_a_dead_process_touch_nothing(machine: Machine) -> None:
    """Its frames live until the world ends, and drop their maps and descriptors then."""
    fs, path = FileSystem(), str(machine.root / NAME)
    maps: list[mmap.mmap] = []

    def work() -> None:
        fd = make(fs, path, b"a" * PAGE)
        maps.append(fs.map(fd, path, PAGE))

    process = run(machine, work, stays=True)
    process.kill()
    machine.hub.run(machine.hub.now_ns + 1)
    maps[0][0] = ord("b")
    maps.pop().close()
    assert content(machine) == b"a" * PAGE


def test_a_map_is_the_file(machine: Machine) -> None:
    fs, path = FileSystem(), str(machine.root / NAME)

    def work() -> None:
        fd = make(fs, path, bytes(PAGE))
        with fs.map(fd, path, PAGE) as mapped:
            mapped[:4] = b"here"
        assert fs.read_at(fd, path, 0, 4) == b"here"
        fs.sync(fd, path)
        fs.sync_directory(str(machine.root))

    run(machine, work)
    machine.lose_power()
    assert content(machine) == b"here".ljust(PAGE, b"\0")


def test_bytes_written_during_a_sync_need_not_be_durable_after_it(machine: Machine) -> None:
    fs, path = FileSystem(), str(machine.root / NAME)

    def write_beside() -> None:
        (machine.root / NAME).write_bytes(b"a" * PAGE + b"b" * PAGE)

    def work() -> None:
        fd = make(fs, path, bytes(2 * PAGE))
        fs.sync(fd, path)
        fs.sync_directory(str(machine.root))
        fs.write_at(fd, path, 0, b"a" * PAGE)
        hub = machine.hub
        hub.after(1, write_beside)
        fs.sync(fd, path)

    run(machine, work)
    file = machine.disk.model.file(str(machine.root / NAME))
    assert content(machine) == b"a" * PAGE + b"b" * PAGE
    assert file.synced.data == b"a" * PAGE + bytes(PAGE)


def test_a_sync_takes_time_and_others_go_on(world: World, machine: Machine) -> None:
    took_ns, ticks = list[int](), list[int]()
    fs, path = FileSystem(), str(machine.root / NAME)

    def work() -> None:
        fd = make(fs, path, b"x")
        began_ns = world.hub.now_ns
        machine.disk.faults.slowness = 1000.0
        fs.sync(fd, path)
        took_ns.append(world.hub.now_ns - began_ns)

    async def tick() -> int:
        while not took_ns:
            await asyncio.sleep(0.001)
            ticks.append(world.hub.now_ns)
        return 0

    world.add_machine().run("ticker", tick)
    run(machine, work)
    assert took_ns[0] > 50_000_000
    assert len(ticks) > 20


def test_the_lock_of_a_dead_process_is_free(machine: Machine) -> None:
    fs, directory = FileSystem(), str(machine.root)
    first = run(machine, lambda: DirectoryLock(fs, directory).acquire(), stays=True)
    first.kill()
    run(machine, lambda: DirectoryLock(fs, directory).acquire())


def test_a_boot_is_seen(machine: Machine) -> None:
    fs, directory = FileSystem(), str(machine.root)
    found: list[bool] = []
    run(machine, lambda: RunMarker(fs, directory).mark_running())
    run(machine, lambda: found.append(RunMarker(fs, directory).last_run().same_boot))
    machine.lose_power()
    machine.power_on()
    run(machine, lambda: found.append(RunMarker(fs, directory).last_run().same_boot))
    assert found == [True, False]


def test_clocks_over_a_power_loss(world: World, machine: Machine) -> None:
    clock = machine.clock
    world.run_s(5_000)
    unix_ns = clock.unix_ns()
    machine.lose_power()
    world.run_s(10)
    machine.power_on()
    assert clock.monotonic_ns() < 3 * 10**9
    assert 9 * 10**9 < clock.unix_ns() - unix_ns < 11 * 10**9


def test_a_full_disk(machine: Machine) -> None:
    fs, path = FileSystem(), str(machine.root / NAME)
    machine.disk.faults.free_size_bytes = 3 * PAGE

    def work() -> None:
        fd = make(fs, path, b"x" * 2 * PAGE)
        assert fs.free_bytes(str(machine.root))[0] == PAGE
        with pytest.raises(StoreFullError):
            fs.write_at(fd, path, 2 * PAGE, b"y" * 2 * PAGE)
        assert fs.size_bytes(fd) == 3 * PAGE, "a prefix was written"
        fs.write_at(fd, path, 0, b"z" * 3 * PAGE)  # In place.
        with pytest.raises(StoreFullError):
            make(fs, path + "2", b"x" * PAGE)
        fs.close(fd)
        fs.unlink(path)
        make(fs, path + "3", b"x" * 3 * PAGE)

    run(machine, work)


def test_errors(machine: Machine) -> None:
    fs, path = FileSystem(), str(machine.root / NAME)
    machine.disk.faults.rules.append(ErrorRule(("read", "rename"), count=2))

    def work() -> None:
        fd = make(fs, path, b"x" * PAGE)
        with pytest.raises(FileSystemError) as read:
            fs.read_at(fd, path, 0, 1)
        assert read.value.errno_value == errno.EIO
        with pytest.raises(FileSystemError):
            fs.rename(path, path + "2")
        assert fs.read_at(fd, path, 0, 1) == b"x"
        fs.rename(path, path + "2")

    run(machine, work)


def test_a_failed_sync_drops_pages_that_no_later_one_writes(machine: Machine) -> None:
    fs, path = FileSystem(), str(machine.root / NAME)

    def work() -> None:
        fd = make(fs, path, b"a" * 2 * PAGE)
        fs.sync(fd, path)
        fs.sync_directory(str(machine.root))
        machine.disk.faults.rules.append(ErrorRule(("sync",), count=1))
        fs.write_at(fd, path, 0, b"b" * PAGE)
        with pytest.raises(SyncFailedError):
            fs.sync(fd, path)
        fs.write_at(fd, path, PAGE, b"c" * PAGE)
        fs.sync(fd, path)
        assert fs.read_at(fd, path, 0, 2 * PAGE) == b"b" * PAGE + b"c" * PAGE

    run(machine, work)
    machine.lose_power()
    assert content(machine) == b"a" * PAGE + b"c" * PAGE


def test_a_page_that_is_written_again_is_durable(machine: Machine) -> None:
    fs, path = FileSystem(), str(machine.root / NAME)

    def work() -> None:
        fd = make(fs, path, b"a" * PAGE)
        fs.sync_directory(str(machine.root))
        machine.disk.faults.rules.append(ErrorRule(("sync",), count=1))
        with pytest.raises(SyncFailedError):
            fs.sync(fd, path)
        fs.write_at(fd, path, 0, b"b")
        fs.sync(fd, path)

    run(machine, work)
    machine.lose_power()
    assert content(machine) == b"b".ljust(PAGE, b"a")


def test_a_disk_that_lies(machine: Machine) -> None:
    machine.disk.faults.lies = True
    write_file(machine, b"a" * 3 * PAGE, is_synced=True)
    assert content(machine) == b"a" * 3 * PAGE
    machine.lose_power()
    found = content(machine)
    assert found is not None
    assert found.count(b"a") == 2 * PAGE


def test_a_sync_hangs_until_the_disk_is_healed(world: World, machine: Machine) -> None:
    machine.disk.faults.hangs = True
    done: list[int] = []
    write_file(machine, b"x", is_synced=True, then=done.append)
    world.run_s(100)
    assert not done
    machine.disk.heal()
    world.run_s(1)
    assert done


@pytest.mark.parametrize("is_before", [True, False])
def test_a_trap_at_a_call(world: World, machine: Machine, is_before: bool) -> None:
    fs, path = FileSystem(), str(machine.root / NAME)

    async def main() -> int:
        fd = make(fs, path, b"a")
        fs.write_at(fd, path, 0, b"b")
        fs.write_at(fd, path, 0, b"c")
        return 0

    process = machine.run("worker", main)
    machine.disk.faults.traps.append(Trap(2, process.kill, ("write",), is_before))
    world.run_s(1)
    assert process.exit_code is None
    assert content(machine) == (b"a" if is_before else b"b")


def test_a_new_disk(machine: Machine) -> None:
    write_file(machine, b"old", is_synced=True)
    machine.wipe()
    assert content(machine) is None


def test_files_beside_the_port_count_as_never_synced() -> None:
    seen = set()
    for seed in range(20):
        with World(seed) as world:
            machine = world.add_machine()
            run(machine, partial((machine.root / NAME).write_bytes, b"x" * PAGE))
            machine.lose_power()
            seen.add(content(machine))
    assert {None, b"x" * PAGE} <= seen


def test_outside_of_processes_files_are_real(machine: Machine, tmp_path: Path) -> None:
    fs, path = FileSystem(), str(tmp_path / NAME)
    before = machine.hub.trace_hash
    fd = make(fs, path, b"x")
    fs.sync(fd, path)
    fs.close(fd)
    assert machine.hub.trace_hash == before, "a call of a disk leaves a trace"
