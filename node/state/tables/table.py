"""What a share of the replicated state is: the types that each of them and their list need.

Owns no rule of a feature. A part is as deterministic as the state around it: no clock, file, log or
random number; a command carries whatever it needs of them. Its image is plain JSON, travels inside
snapshots, and is one file of the checkpoint.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from node.config.limits import Limits
from node.errors.common import NodeError
from quorumlog.pb.state_pb2 import Command
from store.files.meta_file import Json

if TYPE_CHECKING:
    from node.state.state import State

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
    """In the checkpoint; empty: it is written into another table (`checkpoint_tables`)."""
    encode: Callable[[PartContent], PartContent] = lambda content: content
    """To the document of the file, where that has to look like RocketMQ's."""
    decode: Callable[[PartContent], PartContent] = lambda document: document
    has_integer_keys: bool = False
    """The file has them without quotes, as fastjson writes them; both forms are read."""


NOTHING: Final = PartImage(0, {})
