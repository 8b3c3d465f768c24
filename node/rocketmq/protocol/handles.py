"""Texts that clients hand back: receipt handles, transaction ids and recall handles.

Owns their outer form, which names the broker group, so that any node can forward the call without
further knowledge. The rest is the text that the group's broker made.
"""

from typing import NamedTuple

from node.rocketmq.protocol.statuses import CallRefusedError
from quorumlog.pb.rocketmq_pb2 import Code

LENGTH_MAX = 4_096


class ReceiptHandle(NamedTuple):
    """A broker group, and the text that its leader made."""

    group: str
    inner: str

    def __str__(self) -> str:
        """Return the text for a client: the length of the group's name tells where it ends."""
        return f"{len(self.group)}.{self.group}.{self.inner}"


def parse(text: str, code: Code) -> ReceiptHandle:
    """Read a text that a client handed back. Raises CallRefusedError with a code."""
    length_text, dot, rest = text[:LENGTH_MAX].partition(".")
    if dot and length_text.isascii() and length_text.isdecimal() and len(text) <= LENGTH_MAX:
        length = int(length_text[:4])
        group, dot, inner = rest[:length], rest[length : length + 1], rest[length + 1 :]
        if group and dot == "." and inner:
            return ReceiptHandle(group, inner)
    raise CallRefusedError(code, f"{text[:200]!r} was not given out by this cluster")
