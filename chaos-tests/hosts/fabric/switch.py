"""A switch in a process of its own: a TAP device for each port, and a condition for each direction.

Owns the frames: it learns which address lies behind which port, as a switch does, floods what is
for all or unknown, and lets `conditions.py` say when a frame arrives, if at all. It is no kernel
module, so it works where `tc netem` is missing, and it counts what it did to the frames: a fault
that bit nothing is seen. Must not know hosts, addresses of IP, or nodes.

`python -m hosts.fabric.switch SEED PORT...` makes the devices, and says `ready`. Then each line of
its input is a request in JSON and is answered by one line. It ends with its input.
"""

import fcntl
import heapq
import itertools
import json
import os
import selectors
import struct
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from random import Random
from typing import Any, Final

from hosts.fabric.conditions import Direction, condition_of

FRAME_SIZE_BYTES_MAX: Final = 9_216
ADDRESS_COUNT_MAX: Final = 1_024
"""Limit of the learned addresses; beyond it frames are flooded."""
_BURST_COUNT: Final = 64
"""Frames that are taken from one port before the others have their turn."""
_REQUEST_SIZE_BYTES: Final = 1 << 16
_TUNSETIFF: Final = 0x400454CA
_IFF_TAP: Final = 0x0002
_IFF_NO_PI: Final = 0x1000
_ADDRESS_SIZE_BYTES: Final = 6


def open_tap(name: str) -> int:
    """Make a TAP device and return its descriptor: the device is gone when that is closed."""
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    try:
        fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TAP | _IFF_NO_PI))
    except BaseException:
        os.close(fd)
        raise
    return fd


class FrameSwitch:
    """Ports by number, directions by (source, target), frames on the way by time."""

    def __init__(self, fds: Sequence[int], seed: int) -> None:
        self._fds = tuple(fds)
        ports = range(len(self._fds))
        self.directions: Final = {
            pair: Direction(Random(f"{seed} {pair}")) for pair in itertools.permutations(ports, 2)
        }
        self._others = {port: tuple(one for one in ports if one != port) for port in ports}
        self._port_of: dict[bytes, int] = {}
        self._waiting: list[tuple[float, int, Direction, int, bytes]] = []
        self._numbers = itertools.count()
        self.refused_count = 0
        """Frames that a device did not take: its host is not up, or its queue is full."""

    def take(self, source: int, frame: bytes, now_s: float) -> None:
        """Send a frame on from a port."""
        target, sender = frame[:_ADDRESS_SIZE_BYTES], frame[_ADDRESS_SIZE_BYTES:12]
        if sender in self._port_of or len(self._port_of) < ADDRESS_COUNT_MAX:
            self._port_of[sender] = source
        port = self._port_of.get(target)
        for one in self._others[source] if port is None else (port,):
            if one == source:
                continue
            direction = self.directions[source, one]
            for at_s in direction.arrivals(len(frame), now_s):
                if at_s <= now_s:
                    self._deliver(one, frame)
                else:
                    entry = (at_s, next(self._numbers), direction, one, frame)
                    heapq.heappush(self._waiting, entry)

    def deliver_due(self, now_s: float) -> float | None:
        """Deliver the frames whose time has come; return how long until the next, in seconds."""
        while self._waiting:
            at_s, _, direction, target, frame = self._waiting[0]
            if at_s > now_s:
                return at_s - now_s
            heapq.heappop(self._waiting)
            direction.in_flight_count -= 1
            self._deliver(target, frame)
        return None

    def _deliver(self, target: int, frame: bytes) -> None:
        try:
            os.write(self._fds[target], frame)
        except OSError:
            # As on a wire to a host that is down; TCP and its users notice.
            self.refused_count += 1

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Do what a request says: `set` conditions by direction, or tell `counts`."""
        for source, target, condition in request.get("set", ()):
            self.directions[source, target].condition = condition_of(condition)
        if "counts" not in request:
            return {}
        counts = [[*pair, asdict(one.counts)] for pair, one in self.directions.items()]
        return {"counts": counts, "refused": self.refused_count}


def serve(switch: FrameSwitch, fds: Sequence[int]) -> None:
    """Carry frames until the input ends."""
    selector = selectors.DefaultSelector()
    for port, fd in enumerate(fds):
        selector.register(fd, selectors.EVENT_READ, port)
    selector.register(sys.stdin, selectors.EVENT_READ, None)
    requests, wait_s = b"", None
    while True:
        for key, _ in selector.select(wait_s):
            if key.data is None:
                data = os.read(key.fd, _REQUEST_SIZE_BYTES)
                if not data:
                    return
                *lines, requests = (requests + data).split(b"\n")
                for line in lines:
                    _say(switch.answer(json.loads(line)))
                continue
            for _ in range(_BURST_COUNT):
                try:
                    frame = os.read(key.fd, FRAME_SIZE_BYTES_MAX)
                except BlockingIOError:
                    break
                switch.take(key.data, frame, time.monotonic())
        wait_s = switch.deliver_due(time.monotonic())


def _say(value: dict[str, Any]) -> None:
    os.write(sys.stdout.fileno(), json.dumps(value).encode() + b"\n")


def main() -> None:
    """Run the switch; see the top of this module."""
    seed, names = int(sys.argv[1]), sys.argv[2:]
    fds = [open_tap(name) for name in names]
    _say({"ready": names})
    serve(FrameSwitch(fds, seed), fds)


if __name__ == "__main__":
    main()
