"""What the interceptor of the peer link does to frames, on real links."""

import asyncio
import json
import threading
import time
from pathlib import Path

import pytest

from node.peers.faults import ENVIRONMENT_VARIABLE
from node.peers.frames import FrameKind
from node.runtime.hold import hold_interpreter, hold_thread
from tests.node.links import Node, nodes
from tests.patience import eventually


@pytest.fixture
def rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "faults.json"
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, str(path))
    return path


def write(path: Path, **rule: float) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps({"1>2": rule}))
    temporary.replace(path)


async def sent_until(node: Node, other: Node, frames: int) -> None:
    """Send until the other has so many more frames; each has a header of its own."""
    before = len(other.frames)

    def arrived() -> bool:
        node.link.send(2, FrameKind.APPEND, b"%d" % len(other.frames), b"payload")
        return len(other.frames) >= before + frames

    await eventually(arrived)


async def counted(rules: Path, what: str) -> int:
    """Wait until node 1 has counted something."""
    path = rules.with_name(f"{rules.name}.1")

    def found() -> int:
        return int(json.loads(path.read_text()).get(what, 0)) if path.exists() else 0

    await eventually(found)
    return found()


async def test_frames_are_lost_doubled_and_late_by_link(rules: Path) -> None:
    write(rules, drop=1.0)
    async with nodes(Node(1), Node(2)) as (one, two):
        await eventually(lambda: one.link.is_connected(2) and two.link.is_connected(1))
        for number in range(5):
            assert one.link.send(2, FrameKind.APPEND, b"%d" % number)
        two.link.send(1, FrameKind.VOTE_REQUEST, b"the other way all is well")
        await eventually(lambda: one.frames)
        assert await counted(rules, "dropped") == 5
        assert not two.frames
        write(rules, double=1.0)
        await sent_until(one, two, 2)
        assert two.frames[0] == two.frames[1]
        before = len(two.frames)  # Here: a late frame may be there before the rules are read.
        write(rules, late=1.0, late_ms=50.0)
        assert one.link.send(2, FrameKind.VOTE_REQUEST, b"")
        while await counted(rules, "doubled") and "late" not in json.loads(
            await asyncio.to_thread(rules.with_name(f"{rules.name}.1").read_text)
        ):
            assert one.link.send(2, FrameKind.VOTE_REQUEST, b"late")
        await eventually(lambda: len(two.frames) > before)


async def test_a_flipped_bit_of_a_header_ends_the_connection(rules: Path) -> None:
    write(rules, flip=1.0)
    async with nodes(Node(1), Node(2)) as (one, two):
        await eventually(lambda: one.link.is_connected(2))

        def refused() -> bool:
            one.link.send(2, FrameKind.APPEND, b"header")
            return two.closed_counts.get("protocol_error", 0) > 0

        await eventually(refused)
        assert not two.frames, "a frame without a payload is covered by its checksum"
        await asyncio.to_thread(rules.unlink)
        await sent_until(one, two, 1)


async def test_a_node_is_held_once_and_says_so(
    rules: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[tuple[str, int]] = []
    monkeypatch.setattr("node.peers.faults.hold_thread", lambda ms: held.append(("loop", ms)))
    monkeypatch.setattr("node.peers.faults.hold_interpreter", lambda ms: held.append(("lock", ms)))

    def hold(rule: dict[str, dict[str, int]]) -> None:
        temporary = rules.with_suffix(".tmp")
        temporary.write_text(json.dumps(rule))
        temporary.replace(rules)

    async with nodes(Node(1)):
        hold({"hold 1": {"loop_ms": 700}, "hold 2": {"loop_ms": 1}})
        assert await counted(rules, "held") == 1
        hold({"hold 1": {"lock_ms": 900}})
        await eventually(lambda: len(held) == 2)
        assert held == [("loop", 700), ("lock", 900)]


@pytest.mark.long
def test_a_held_interpreter_lets_no_other_thread_run() -> None:
    longest_s, ran = 0.0, set[int]()
    done = threading.Event()

    def tick() -> None:
        nonlocal longest_s
        before = time.perf_counter()
        while not done.is_set():
            now = time.perf_counter()
            longest_s, before = max(longest_s, now - before), now
            ran.add(int(100 * now))

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        began = time.perf_counter()
        hold_thread(1_000)
        # However slow the machine is: at some time within, so it was not kept from it.
        assert ran & set(range(int(100 * began) + 10, int(100 * began) + 90))
        longest_s = 0.0
        hold_interpreter(200)
    finally:
        done.set()
        thread.join()
    assert longest_s >= 0.19, "the other thread ran"
