"""What this leader has under way and the state does not show yet; of one term.

Owns two notes: windows of which messages are being taken or moved, and messages that are being
acknowledged or hidden. They only keep the leader from useless or doubtful work: a command that
comes too late changes nothing (`node.state.tables.pop`). A move to the dead letters is the
exception, it leaves a record behind, so nothing else may be under way for its messages.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from node.state.tables.pop import WindowKey


class UnderWay:
    """Notes of one term. Belongs to the loop's thread."""

    def __init__(self) -> None:
        self._windows: set[WindowKey] = set()
        self._messages: Counter[tuple[WindowKey, int]] = Counter()
        self.dying: set[tuple[WindowKey, int]] = set()
        """On their way to the dead letters."""

    def has_window(self, key: WindowKey) -> bool:
        """Say whether messages of a window are being taken or moved."""
        return key in self._windows

    def is_ending(self, key: WindowKey, offset: int) -> bool:
        """Say whether something is under way for a message."""
        return (key, offset) in self._messages or (key, offset) in self.dying

    def begin_windows(self, keys: Iterable[WindowKey]) -> None:
        """Note windows, each of which is free."""
        new = set(keys)
        assert not new & self._windows, f"{new & self._windows} twice"
        self._windows |= new

    def end_windows(self, keys: Iterable[WindowKey]) -> None:
        """They are free again."""
        self._windows -= set(keys)

    @contextmanager
    def windows(self, keys: Iterable[WindowKey]) -> Iterator[None]:
        """Note windows, each of which is free, for a while."""
        noted = set(keys)
        self.begin_windows(noted)
        try:
            yield
        finally:
            self.end_windows(noted)

    @contextmanager
    def messages(self, messages: Iterable[tuple[WindowKey, int]]) -> Iterator[None]:
        """Note messages that are acknowledged or hidden, however often at the same time."""
        noted = list(messages)
        self._messages.update(noted)
        try:
            yield
        finally:
            for message in noted:
                self._messages[message] -= 1
                if not self._messages[message]:
                    del self._messages[message]
