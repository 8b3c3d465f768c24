"""The types of a table of the replicated state: one feature's share of it.

Owns no rule of a feature. A table is as deterministic as the state around it: no clock, file, log
or random number; a command carries the values it needs of them. Its image is plain JSON, travels
inside snapshots, and is one file of the checkpoint.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Final, NamedTuple, Protocol

from node.config.limits import Limits
from node.errors.common import NodeError
from node.state.tables.topic_types import Offsets
from quorumlog.pb.state_pb2 import Command
from store.files.meta_file import Json

TableContent = dict[str, Json]


class TableImage(NamedTuple):
    """A copy of a table at one moment, never changed."""

    version: int
    """Count of its changes until then."""
    content: TableContent


class Core(Protocol):
    """The topics, groups and offsets of the state around a table, as a table uses them."""

    @property
    def groups(self) -> Mapping[str, Offsets]: ...

    def queue_refusal(self, name: str, queue_id: int) -> NodeError | None:
        """Return the refusal of a queue that no topic of clients has; else None."""

    def make_group(self, name: str) -> NodeError | None:
        """Create a group without offsets, unless it exists."""

    def store_offsets(self, group: str, topic: str, offsets: Mapping[int, int]) -> NodeError | None:
        """Store offsets of queues of one topic; all or none."""


class Table:
    """One feature's share of the state, and what its commands do to it. Belongs to the loop's
    thread."""

    name: ClassVar[str]
    """Name in snapshots."""
    file_name: ClassVar[str] = ""
    """Name in the checkpoint; empty: written into another table (`checkpoint_tables`)."""
    commands: ClassVar[frozenset[str]] = frozenset()
    """Fields of `Command` that the table applies."""
    has_integer_keys: ClassVar[bool] = False
    """Whether its integer keys have no quotes, as fastjson writes them; both forms are read."""

    def __init__(self, limits: Limits, image: TableImage) -> None:
        """Raises ValueError or CorruptionError for an image of another form."""
        self._limits = limits
        self.version = image.version
        """Count of changes."""
        self._content: TableContent | None = None
        """Copy for images; None since a change."""

    def _parts(self, image: TableImage, **empty: Json) -> list[Any]:
        """Return the named parts of an image, `empty` for a missing one. Raises ValueError."""
        parts = [image.content.get(name, part) for name, part in empty.items()]
        are_known = all(type(a) is type(b) for a, b in zip(parts, empty.values(), strict=True))
        if image.content.keys() - empty.keys() or not are_known:
            raise ValueError(f"{self.name} of an unknown form: {sorted(image.content)}")
        return parts

    def apply(self, state: Core, command: Command, position: int) -> NodeError | None:
        """Apply a command; return the refusal if it changes nothing, else None."""
        raise AssertionError(f"not a command of this table: {command.WhichOneof('command')}")

    def forget_topic(self, name: str) -> None:
        """Forget a topic that was deleted, if there is anything to forget."""

    def forget_group(self, name: str) -> None:
        """Forget a consumer group that was deleted, if there is anything to forget."""

    def content(self) -> TableContent:
        """Return everything as JSON values that later commands do not change.

        Called for each checkpoint on the loop's thread: copy no more than what changed.
        """
        if self._content is None:
            self._content = self._copy()
        return self._content

    def _copy(self) -> TableContent:
        """Return a new copy, for a table that is copied as a whole."""
        raise NotImplementedError

    def _changed(self) -> None:
        self.version += 1
        self._content = None

    @staticmethod
    def encode(content: TableContent) -> TableContent:
        """Return the document of the file, where that has to look like RocketMQ's."""
        return content

    @staticmethod
    def decode(document: TableContent) -> TableContent:
        """Return the content of a document."""
        return document


NOTHING: Final = TableImage(0, {})
