"""Messages that consumer groups have in flight by pop: until when, and how often given out.

Owns the windows and what commands do to them; must not know a clock, the log, or waiting receives.
There is one window for each (group, topic, queue) with something in flight. A window begins at the
group's stored offset, so one with nothing in flight is that offset alone and is not held here: a
thousand idle groups cost nothing. A delivery is named by its generation, which grows with each
take; a command with an older one is passed over, so everything that the leader could not know when
it wrote a command is decided here, once, on all replicas. Source: storage-formats 8.11. Deviation:
state of the log, instead of checkpoints and acks that a timer sorts out.
"""

from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Any, Final, NamedTuple, cast

from node.config.limits import Limits
from node.errors.common import LimitReachedError, NodeError
from node.errors.pop import PopConflictError
from node.state.tables.table import Core, Table, TableContent, TableImage
from quorumlog.pb.pop_pb2 import PopHide, PopSettle, PopTake
from quorumlog.pb.state_pb2 import Command
from store.files.meta_file import Json

_FORMAT: Final = 2
NO_OFFSET: Final = -1

WindowKey = tuple[str, str, int]
"""Group, topic, queue id."""


class InFlightMessage(NamedTuple):
    """One message of a window."""

    delivery_count: int
    """0: the message waits for an earlier one of its message group."""
    generation: int
    """Generation of its last delivery."""
    visible_unix_ms: int
    """By the clock of the leader that decided it."""
    message_group: int
    """Hash of the message group; two groups with the same one wait for each other."""


class Window:
    """Messages that a group has in flight of one queue."""

    __slots__ = ("attempts", "earliest_unix_ms", "items", "next_offset")

    def __init__(self, next_offset: int) -> None:
        self.next_offset = next_offset
        """First offset that was not looked at."""
        self.items: dict[int, InFlightMessage] = {}
        """By offset, ascending. Invariant: never empty between two commands."""
        self.attempts: dict[str, int] = {}
        """Generation of the last attempts that had a name, the newest last."""
        self.earliest_unix_ms = 0
        """No message becomes visible earlier; not part of the state, but derived from it."""

    @property
    def floor(self) -> int:
        """Offset before which everything is done."""
        return next(iter(self.items), self.next_offset)


class PopTable(Table):
    """All windows of all groups."""

    name, file_name = "pop", "popInFlight.json"
    commands = frozenset({"pop_take", "pop_settle", "pop_hide"})

    def __init__(self, limits: Limits, image: TableImage) -> None:
        super().__init__(limits, image)
        self.windows: Final[dict[WindowKey, Window]] = {}
        self._rows: TableContent = {}
        """Copies for images, restored ones included. Rows are replaced, never changed."""
        self._changed_keys: set[WindowKey] = set()
        """Windows whose copy is older than they are."""
        self.in_flight_count = 0
        self.last_generation = 0
        if image.content:
            self._restore(image.content)

    def _restore(self, content: TableContent) -> None:
        if content["format"] != _FORMAT:
            raise ValueError(f"pop: format {content['format']}, this version reads {_FORMAT}")
        self.last_generation = cast("int", content["generation"])
        for row in cast("dict[str, Any]", content["windows"]).values():
            group, topic, queue_id, next_offset, items, attempts = row
            key = (group, topic, queue_id)
            window = self.windows[key] = Window(next_offset)
            window.items = {offset: InFlightMessage(*item) for offset, item in items}
            window.attempts = dict(attempts)
            window.earliest_unix_ms = earliest(window)
            self.in_flight_count += len(window.items)
            self._rows[_row_name(key)] = row

    def content(self) -> TableContent:
        """Return everything; only windows that changed are copied again.

        By name, and in no order: the writer of the file sorts it, and not on the loop's thread.
        """
        rows = self._rows
        for key in self._changed_keys:
            window, name = self.windows.get(key), _row_name(key)
            if window is None:
                rows.pop(name, None)
            else:
                items, attempts = list(window.items.items()), list(window.attempts.items())
                rows[name] = cast("Json", [*key, window.next_offset, items, attempts])
        self._changed_keys.clear()
        return {"format": _FORMAT, "generation": self.last_generation, "windows": dict(rows)}

    @staticmethod
    def encode(content: TableContent) -> TableContent:
        """Return the document of the file, as `decode` reads it."""
        table: dict[str, Any] = {}
        rows = sorted(cast("dict[str, Any]", content["windows"]).values(), key=itemgetter(slice(3)))
        for group, topic, queue_id, next_offset, items, attempts in rows:
            table.setdefault(f"{topic}@{group}", {})[str(queue_id)] = {
                "nextOffset": next_offset,
                "messages": [" ".join(map(str, (offset, *item))) for offset, item in items],
                "attempts": dict(attempts),
            }
        return {"format": content["format"], "generation": content["generation"], "inFlight": table}

    @staticmethod
    def decode(document: TableContent) -> TableContent:
        """Read a line for each message: offset, count, generation, visible from, message group."""
        rows: TableContent = {}
        for name, queues in cast("dict[str, Any]", document["inFlight"]).items():
            topic, _, group = name.partition("@")
            for queue_id, row in queues.items():
                lines = (tuple(map(int, line.split(" "))) for line in row["messages"])
                items = [(offset, item) for offset, *item in lines]
                attempts = list(row["attempts"].items())
                key = (group, topic, int(queue_id))
                rows[_row_name(key)] = cast("Json", [*key, row["nextOffset"], items, attempts])
        return {"format": document["format"], "generation": document["generation"], "windows": rows}

    def next_offset(self, state: Core, key: WindowKey) -> int:
        """Return the first offset that was not looked at; NO_OFFSET: the group has not begun."""
        window = self.windows.get(key)
        if window is not None:
            return window.next_offset
        group, topic, queue_id = key
        return state.groups.get(group, {}).get(topic, {}).get(queue_id, NO_OFFSET)

    def in_flight(self, key: WindowKey, offset: int) -> InFlightMessage | None:
        """Return a message that is in flight; None if it is not."""
        window = self.windows.get(key)
        return None if window is None else window.items.get(offset)

    def is_newest(self, key: WindowKey, offset: int, generation: int) -> bool:
        """Whether a message is in flight, and was last delivered under a generation."""
        item = self.in_flight(key, offset)
        return item is not None and item.generation == generation

    def of_group(self, group: str) -> Iterator[tuple[WindowKey, Window]]:
        """Yield the windows of one group."""
        return ((key, window) for key, window in self.windows.items() if key[0] == group)

    # --- Commands ---

    def apply(self, state: Core, command: Command, _position: int) -> NodeError | None:
        """Apply a command; return the refusal if it changes nothing, else None."""
        self.version += 1
        if command.HasField("pop_take"):
            return self._take(state, command.pop_take)
        if command.HasField("pop_settle"):
            self._settle(state, command.pop_settle)
        else:
            self._hide(command.pop_hide)
        return None

    def _take(self, state: Core, take: PopTake) -> NodeError | None:
        """Put messages into flight, all that are new or none."""
        refusal = self._check(state, take)
        if refusal is None:
            refusal = state.store_offsets(take.group, take.topic, self._floors(take))
        if refusal is not None:
            return refusal
        self.last_generation = max(self.last_generation, take.generation)
        for queue in take.queues:
            key = (take.group, take.topic, queue.queue_id)
            window = self.windows.get(key)
            if window is None:
                window = self.windows[key] = Window(queue.next_offset)
            self._changed_keys.add(key)
            self._take_of(window, queue, take)
            if not window.items:
                del self.windows[key]
        return None

    def _check(self, state: Core, take: PopTake) -> NodeError | None:
        limits, added_count = self._limits, 0
        for queue in take.queues:
            refusal = state.queue_refusal(take.topic, queue.queue_id)
            if refusal is not None:
                return refusal
            key = (take.group, take.topic, queue.queue_id)
            if self.next_offset(state, key) != queue.expected_offset:
                return PopConflictError(*key)
            window = self.windows.get(key)
            if window is not None and not _is_current(window, queue):
                return PopConflictError(*key)
            count = len(queue.offsets) + len(queue.waiting_offsets)
            added_count += count
            count += 0 if window is None else len(window.items)
            if count > limits.pop_window_count_max:
                return LimitReachedError("messages in flight", count, limits.pop_window_count_max)
        count, limit = self.in_flight_count + added_count, limits.pop_in_flight_count_max
        if added_count and count > limit:
            return LimitReachedError("messages in flight of all groups", count, limit)
        return None

    def _floors(self, take: PopTake) -> dict[int, int]:
        """Return the offsets of the group that move."""
        floors = {}
        for queue in take.queues:
            if (take.group, take.topic, queue.queue_id) not in self.windows:
                new = min((*queue.offsets[:1], *queue.waiting_offsets[:1]), default=None)
                floor = queue.next_offset if new is None else new
                if floor != queue.expected_offset:
                    floors[queue.queue_id] = floor
        return floors

    def _take_of(self, window: Window, queue: PopTake.Queue, take: PopTake) -> None:
        generation, visible = take.generation, take.visible_unix_ms
        items = window.items
        for offset, before in zip(queue.again_offsets, queue.again_generations, strict=True):
            item = items.get(offset)
            if item is not None:  # Else acknowledged meanwhile.
                assert item.generation == before, f"{item}, taken from {before}"
                count = item.delivery_count + 1
                items[offset] = InFlightMessage(count, generation, visible, item.message_group)
        new = [
            (offset, InFlightMessage(1, generation, visible, group))
            for offset, group in zip(queue.offsets, queue.message_groups, strict=True)
        ]
        new += (
            (offset, InFlightMessage(0, 0, 0, group))
            for offset, group in zip(
                queue.waiting_offsets, queue.waiting_message_groups, strict=True
            )
        )
        if queue.waiting_offsets:
            new.sort()
        items.update(new)
        self.in_flight_count += len(new)
        window.next_offset = queue.next_offset
        if take.attempt_id:
            self._note_attempt(window, take.attempt_id, generation)
        window.earliest_unix_ms = min(window.earliest_unix_ms or visible, visible)

    def _note_attempt(self, window: Window, attempt_id: str, generation: int) -> None:
        attempts = window.attempts
        attempts.pop(attempt_id, None)
        attempts[attempt_id] = generation
        if len(attempts) > self._limits.pop_attempt_count_max:
            del attempts[next(iter(attempts))]

    def _settle(self, state: Core, settle: PopSettle) -> None:
        """Take messages out of flight: acknowledged, dead, or expired."""
        floors: dict[int, int] = {}
        for key, offset, _ in self._matching(settle):
            window = self.windows[key]
            was_floor = offset == window.floor
            del window.items[offset]
            self._changed_keys.add(key)
            self.in_flight_count -= 1
            if was_floor:
                floors[key[2]] = window.floor
            if not window.items:
                del self.windows[key]
        refusal = state.store_offsets(settle.group, settle.topic, floors)
        assert refusal is None, f"{settle.topic} of {settle.group}: {refusal}"

    def _hide(self, hide: PopHide) -> None:
        """Make messages visible later or earlier."""
        visible = hide.visible_unix_ms
        for key, offset, item in self._matching(hide):
            window = self.windows[key]
            window.items[offset] = item._replace(visible_unix_ms=visible)
            self._changed_keys.add(key)
            window.earliest_unix_ms = min(window.earliest_unix_ms, visible)

    def _matching(
        self, command: PopSettle | PopHide
    ) -> Iterator[tuple[WindowKey, int, InFlightMessage]]:
        """Yield messages in flight whose last delivery is the one named."""
        rows = zip(command.queue_ids, command.offsets, command.generations, strict=True)
        for queue_id, offset, generation in rows:
            key = (command.group, command.topic, queue_id)
            window = self.windows.get(key)
            item = None if window is None else window.items.get(offset)
            if item is not None and item.generation == generation:
                yield key, offset, item

    # --- Other changes ---

    def reset(self, group: str, queues: Iterable[tuple[str, int]]) -> None:
        """Forget messages in flight of these queues: other offsets were stored for the group.

        The group goes on at those offsets; earlier deliveries are stale.
        """
        for topic, queue_id in queues if self.windows else ():
            self._forget((group, topic, queue_id))

    def forget_topic(self, name: str) -> None:
        """Forget messages in flight of a deleted topic."""
        for key in [key for key in self.windows if key[1] == name]:
            self._forget(key)

    def forget_group(self, name: str) -> None:
        """Forget messages in flight of a deleted group."""
        for key in [key for key in self.windows if key[0] == name]:
            self._forget(key)

    def _forget(self, key: WindowKey) -> None:
        window = self.windows.pop(key, None)
        if window is not None:
            self.in_flight_count -= len(window.items)
            self._changed_keys.add(key)
            self.version += 1


def _is_current(window: Window, queue: PopTake.Queue) -> bool:
    """Whether no message to be handed out again was handed out meanwhile; it may be done."""
    rows = zip(queue.again_offsets, queue.again_generations, strict=True)
    items = ((window.items.get(offset), before) for offset, before in rows)
    return all(item is None or item.generation == before for item, before in items)


def _row_name(key: WindowKey) -> str:
    group, topic, queue_id = key
    return f"{topic}@{group} {queue_id}"


def earliest(window: Window) -> int:
    """Return when the first delivered message becomes visible; 0 if none was delivered."""
    return min((i.visible_unix_ms for i in window.items.values() if i.delivery_count), default=0)
