"""Pop work that this leader has under way and the state does not show yet; of one term.

Owns two notes: windows with messages that are being taken or moved, and messages that are being
acknowledged or hidden. The notes only keep the leader from useless or doubtful work: a command that
comes too late changes nothing (`node.state.tables.pop`). A move to the dead letters is the
exception: its record stays in the log, so nothing else may be under way for its messages.
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
        """Messages on their way to the dead letters."""

    def has_window(self, key: WindowKey) -> bool:
        """Whether messages of a window are being taken or moved."""
        return key in self._windows

    def is_ending(self, key: WindowKey, offset: int) -> bool:
        """Whether something is under way for a message."""
        return (key, offset) in self._messages or (key, offset) in self.dying

    def begin_windows(self, keys: Iterable[WindowKey]) -> None:
        """Note windows as taken. Each has to be free."""
        new = set(keys)
        assert not new & self._windows, f"{new & self._windows} twice"
        self._windows |= new

    def end_windows(self, keys: Iterable[WindowKey]) -> None:
        """Release windows."""
        self._windows -= set(keys)

    @contextmanager
    def windows(self, keys: Iterable[WindowKey]) -> Iterator[None]:
        """Note windows as taken, for a while. Each has to be free."""
        noted = set(keys)
        self.begin_windows(noted)
        try:
            yield
        finally:
            self.end_windows(noted)

    @contextmanager
    def messages(self, messages: Iterable[tuple[WindowKey, int]]) -> Iterator[None]:
        """Note messages as acknowledged or hidden, for a while; a message may be noted twice."""
        noted = list(messages)
        self._messages.update(noted)
        try:
            yield
        finally:
            for message in noted:
                self._messages[message] -= 1
                if not self._messages[message]:
                    del self._messages[message]
