"""Shares of the replicated state that belong to one feature each, and the list of them.

Owns what they have in common: who applies which command, and how a share is copied and written
down. Must not know any rule of a feature. A part is as deterministic as the state around it: no
clock, file, log or random number; a command carries whatever it needs of them. Its image is plain
JSON, travels inside snapshots, and is one file of the checkpoint.
"""

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from node.errors import NodeError
from node.limits import Limits
from quorumlog.pb.state_pb2 import Command
from store.meta_file import Json

if TYPE_CHECKING:
    from node.state import State

PartContent = dict[str, Json]


class PartImage(NamedTuple):
    """A copy of a part at one moment, never changed."""

    version: int
    """How often it had changed."""
    content: PartContent


class Part(Protocol):
    """One feature's tables, and what its commands do to them. Belongs to the loop's thread."""

    version: int
    """How often it changed."""

    def apply(self, state: "State", command: Command, position: int) -> NodeError | None:
        """Do what a command says, or return why it changes nothing."""

    def forget_topic(self, name: str) -> None:
        """A topic was deleted."""

    def forget_group(self, name: str) -> None:
        """A consumer group was deleted."""

    def content(self) -> PartContent:
        """Return everything as JSON values that later commands do not change.

        Called for each checkpoint on the loop's thread: copy no more than what changed.
        """


class PartKind(NamedTuple):
    """What has to be known of a part to have one."""

    name: str
    """In snapshots."""
    part_class: type[Part]
    make: Callable[[Limits, PartImage], Part]
    commands: frozenset[str]
    """Those of `Command` that it applies."""
    file_name: str
    """In the checkpoint."""
    encode: Callable[[PartContent], PartContent] = lambda content: content
    """To the document of the file, where that has to look like RocketMQ's."""
    decode: Callable[[PartContent], PartContent] = lambda document: document


NOTHING: Final = PartImage(0, {})

PARTS: Final[tuple[PartKind, ...]] = ()


def kinds_by_command(kinds: tuple[PartKind, ...]) -> Mapping[str, str]:
    """Return which part applies which command."""
    return {command: kind.name for kind in kinds for command in kind.commands}


def encode_part(kind: PartKind, image: PartImage, written_unix_ms: int) -> str:
    """Return the text of a part's file, with RocketMQ's dataVersion in front."""
    version = {"counter": image.version, "stateVersion": 0, "timestamp": written_unix_ms}
    document = {"dataVersion": version, **kind.encode(image.content)}
    return json.dumps(document, indent="\t", allow_nan=False) + "\n"


def decode_part(kind: PartKind, text: str) -> PartImage:
    """Read a part's file. Raises ValueError, KeyError or TypeError for another shape."""
    document = json.loads(text)
    if not isinstance(document, dict):
        raise TypeError(f"not an object: {text[:20]!r}")
    version = int(document.pop("dataVersion")["counter"])
    return PartImage(version, kind.decode(document))
