"""Frames between nodes that are lost, doubled, late or damaged on purpose, as a file demands.

Owns the fate of a frame on its way out; must not know what it says. In every build and off by
default: without the variable QUORUMLOG_TEST_LINK_FAULTS nothing here runs. A TCP proxy cannot do
this to single messages. All nodes of a cluster read the same file, so a cut of many links begins
with one rename. The file holds rules by link: `{"1>2": {"drop": 1}, "*": {"late": 0.1, "late_ms":
50}}`; each node counts what it did in a file of its own beside it. `{"hold 2": {"loop_ms": 900}}`
holds the event loop of node 2 once for each new file, `lock_ms` its interpreter.
"""

import asyncio
import json
import os
from collections import Counter
from pathlib import Path
from random import Random
from typing import Final

from node.peers.connection import PeerConnection
from node.peers.frames import FrameKind, encode_head
from node.runtime.hold import hold_interpreter, hold_thread
from raft.messages import NodeId

ENVIRONMENT_VARIABLE: Final = "QUORUMLOG_TEST_LINK_FAULTS"
_READ_INTERVAL_S: Final = 0.05


class LinkFaults:
    """The faults of one node in the frames that it sends. Belongs to the running event loop."""

    def __init__(self, path: Path, node: NodeId, random: Random) -> None:
        self._path, self._node, self._random = path, node, random
        self._counts_path = path.with_name(f"{path.name}.{node}")
        self._loop = asyncio.get_running_loop()
        self.rules: dict[str, dict[str, float]] = {}
        self._seen: tuple[int, int] | None = None
        self._counts: Counter[str] = Counter()
        self._written_counts: Counter[str] = Counter()
        self._timer: asyncio.TimerHandle | None = None
        self._read()

    @classmethod
    def from_environment(cls, node: NodeId, random: Random) -> "LinkFaults | None":
        """Return the faults that the environment asks for; as a rule, None."""
        path = os.environ.get(ENVIRONMENT_VARIABLE)
        return cls(Path(path), node, random) if path else None

    def took(
        self, connection: PeerConnection, to: NodeId, kind: FrameKind, header: bytes, payload: bytes
    ) -> bool:
        """Apply faults to a frame; return whether that settles it. If not, the caller sends it."""
        if not self.rules:
            return False
        rule = self.rules.get(f"{self._node}>{to}") or self.rules.get("*")
        if rule is None:
            return False
        chance = self._random.random
        if chance() < rule.get("drop", 0):
            self._counts["dropped"] += 1
            return True
        if chance() < rule.get("flip", 0):
            frame = encode_head(kind, header, len(payload)) + bytes(payload)
            connection.send_as_is(self._flipped(frame))
            return True
        if chance() < rule.get("late", 0):
            self._counts["late"] += 1
            delay_s = self._random.uniform(0, rule.get("late_ms", 0)) / 1000
            # A copy: the buffer behind the payload may change before the copy leaves.
            self._loop.call_later(delay_s, connection.send, kind, header, bytes(payload))
            return True
        if chance() < rule.get("double", 0):
            self._counts["doubled"] += 1
            connection.send(kind, header, payload)
        return False

    def harmed(self, to: NodeId, parts: list[bytes]) -> list[bytes]:
        """Return parts of a stream, some with a flipped bit: a stream has no frames to lose or
        delay."""
        rule = self.rules.get(f"{self._node}>{to}") or self.rules.get("*")
        chance = rule.get("flip", 0) if rule else 0
        return [self._flipped(part) if self._random.random() < chance else part for part in parts]

    def _flipped(self, part: bytes) -> bytes:
        if not part:
            return part
        self._counts["flipped"] += 1
        harmed = bytearray(part)
        harmed[self._random.randrange(len(harmed))] ^= 1 << self._random.randrange(8)
        return bytes(harmed)

    def _hold(self) -> None:
        rule = self.rules.get(f"hold {self._node}", {})
        for name, hold in (("loop_ms", hold_thread), ("lock_ms", hold_interpreter)):
            if name in rule:
                self._counts["held"] += 1
                hold(int(rule[name]))

    def stop(self) -> None:
        """Stop reading the file."""
        if self._timer is not None:
            self._timer.cancel()

    def _read(self) -> None:
        self._timer = self._loop.call_later(_READ_INTERVAL_S, self._read)
        if self._counts != self._written_counts:
            self._written_counts = self._counts.copy()
            temporary = self._counts_path.with_name(f"{self._counts_path.name}.tmp")
            temporary.write_text(json.dumps(self._counts), "utf-8")
            temporary.replace(self._counts_path)  # A reader never sees half a file.
        try:
            status = self._path.stat()
            seen = (status.st_ino, status.st_mtime_ns)
            if seen != self._seen:
                self.rules = json.loads(self._path.read_text("utf-8"))
                self._seen = seen
                self._hold()
        except FileNotFoundError:
            self.rules, self._seen = {}, None
