"""What becomes of a frame under a condition, and the switch that carries it."""

import json
import os
import socket
from collections.abc import Iterator
from dataclasses import asdict
from random import Random

import pytest
from hosts.fabric.conditions import (
    IN_FLIGHT_COUNT_MAX,
    PERFECT,
    Direction,
    LinkCondition,
    condition_of,
)
from hosts.fabric.switch import ADDRESS_COUNT_MAX, FrameSwitch

ALL = b"\xff" * 6
ONE, TWO, THREE = (bytes([2, 0, 0, 0, 0, last]) for last in (1, 2, 3))
Ports = tuple[FrameSwitch, list[socket.socket]]


def direction(**condition: float) -> Direction:
    return Direction(Random(7), condition_of(condition))


@pytest.mark.parametrize(
    ("condition", "arrivals", "counted"),
    [
        ({}, (1.0,), "passed"),
        ({"is_cut": True}, (), "cut"),
        ({"duplicate": 1.0}, (1.0, 1.0), "doubled"),
        ({"frame_size_bytes_max": 600}, (1.0,), "passed"),
        ({"frame_size_bytes_max": 599}, (), "too_long"),
    ],
)
def test_a_frame_arrives_as_its_condition_says_and_is_counted(
    condition: dict[str, float], arrivals: tuple[float, ...], counted: str
) -> None:
    way = direction(**condition)
    assert way.arrivals(600, 1.0) == arrivals
    counts = {name: count for name, count in asdict(way.counts).items() if count}
    assert counts == {"sent": 1, counted: 1} | ({"passed": 1} if arrivals else {})


def test_loss_is_the_chance_that_was_asked_for_and_repeats_from_a_seed() -> None:
    first, other = direction(loss=0.1), direction(loss=0.1)
    passed = [bool(first.arrivals(60, 0.0)) for _ in range(4000)]
    assert passed == [bool(other.arrivals(60, 0.0)) for _ in range(4000)]
    assert 300 < first.counts.lost < 500
    assert first.counts.lost + first.counts.passed == 4000


def test_frames_with_jitter_are_late_within_its_bounds_and_stay_in_order() -> None:
    way = direction(delay_ms=30.0, jitter_ms=5.0)
    times = [way.arrivals(60, at / 1000)[0] for at in range(500)]
    assert times == sorted(times)
    assert all(0.025 <= found - at / 1000 <= 0.0355 for at, found in enumerate(times))
    assert way.counts.delayed == way.in_flight_count == 500


def test_a_frame_that_is_reordered_overtakes_those_on_the_way() -> None:
    way = direction(delay_ms=30.0, reorder=0.3)
    times = [way.arrivals(60, at / 1000)[0] for at in range(500)]
    assert times != sorted(times)
    assert 100 < way.counts.overtook < 200


def test_frames_on_the_way_have_a_limit() -> None:
    way = direction(delay_ms=10_000.0)
    for _ in range(IN_FLIGHT_COUNT_MAX):
        assert way.arrivals(60, 0.0)
    assert way.arrivals(60, 0.0) == ()
    assert way.counts.overflowed == 1


def test_frames_stay_in_order_when_a_delay_ends() -> None:
    way = direction(delay_ms=30.0)
    (late,) = way.arrivals(60, 1.0)
    way.condition = PERFECT
    assert way.arrivals(60, 1.01) == (late,)
    way.in_flight_count = 0
    assert way.arrivals(60, 2.0) == (2.0,)


@pytest.mark.parametrize(
    "bad",
    [{"loss": 1.1}, {"reorder": -0.1}, {"duplicate": 2}, {"jitter_ms": 1}, {"delay_ms": 1e9}],
)
def test_a_condition_that_cannot_be_is_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="use 0 to"):
        LinkCondition(**bad)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="use 0 to"):
        condition_of(bad)


@pytest.fixture
def ports() -> Iterator[Ports]:
    """A switch of three ports, and the far end of each; datagrams are frames."""
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(3)]
    for _, far in pairs:
        far.setblocking(False)
    yield FrameSwitch([near.fileno() for near, _ in pairs], 7), [far for _, far in pairs]
    for near, far in pairs:
        near.close()
        far.close()


def received(far: socket.socket) -> list[bytes]:
    frames = []
    while True:
        try:
            frames.append(far.recv(9000))
        except BlockingIOError:
            return frames


def test_frames_go_where_their_address_was_learned_and_else_to_all(ports: Ports) -> None:
    switch, far = ports

    def sent(source: int, frame: bytes) -> list[int]:
        """Return the ports that a frame reaches."""
        switch.take(source, frame, 0.0)
        return [port for port, end in enumerate(far) if received(end) == [frame]]

    assert sent(0, ALL + ONE) == sent(0, THREE + ONE) == [1, 2]
    assert sent(1, ALL + TWO) == [0, 2]
    assert sent(0, TWO + ONE) == [1]
    assert sent(2, ALL + TWO) == [0, 1]
    assert sent(0, TWO + ONE) == [2], "the address has moved to another port"
    for number in range(ADDRESS_COUNT_MAX - 2):  # ONE and TWO are known.
        sent(2, THREE + b"\x06" + number.to_bytes(5, "big"))
    sent(1, TWO + THREE)
    assert sent(0, THREE + ONE) == [1, 2], "addresses that are learned have a limit"


def test_a_delayed_frame_arrives_when_it_is_due_and_not_before(ports: Ports) -> None:
    switch, far = ports
    late = asdict(LinkCondition(delay_ms=30.0))
    assert switch.answer({"set": [[0, 1, late]]}) == {}
    switch.take(0, ALL + ONE, 1.0)
    assert [len(received(one)) for one in far] == [0, 0, 1]
    assert switch.deliver_due(1.02) == pytest.approx(0.01)
    assert received(far[1]) == []
    assert switch.deliver_due(1.03) is None
    assert received(far[1]) == [ALL + ONE]
    assert switch.directions[0, 1].in_flight_count == 0


def test_the_switch_tells_what_became_of_frames_by_direction(ports: Ports) -> None:
    switch, far = ports
    switch.answer({"set": [[0, 1, {"is_cut": True}]]})
    switch.take(0, ALL + ONE, 0.0)
    counts = json.loads(json.dumps(switch.answer({"counts": True})))["counts"]
    counts_by_link = {(source, target): count for source, target, count in counts}
    assert counts_by_link[0, 1]["cut"] == 1
    assert (counts_by_link[0, 2]["passed"], counts_by_link[0, 2]["cut"]) == (1, 0)
    assert received(far[1]) == []


def test_a_frame_that_a_device_does_not_take_is_counted(ports: Ports) -> None:
    switch, far = ports
    far[1].close()
    switch.take(0, ALL + ONE, 0.0)
    assert switch.answer({"counts": True})["refused"] == 1
    assert received(far[2]) == [ALL + ONE]
    assert os.fstat(far[0].fileno())
