"""The last things that happened at this node: its own log lines, as data for people elsewhere.

Owns the list, its bounds, and what of a line is in it. An event is a line that a component of the
node logged, of level `info` or above, with its values by name. Of others (libraries, native code,
Python itself) an event is only what they call an error, as asyncio does a task that failed: their
warnings are often about strangers, and would displace what happened here. Secrets were hidden
before. Any thread logs.
"""

import itertools
import json
import time
from collections import deque
from collections.abc import MutableMapping
from typing import Any, Final, NamedTuple

COUNT_MAX: Final = 1_000
SIZE_CHARACTERS_MAX: Final = 2_000
"""Limit of the text, and of the values, of one event: a stranger may be quoted in them."""
_LEVELS: Final = ("info", "warning", "error", "critical")
_LEVELS_OF_OTHERS: Final = _LEVELS[2:]
OF_OTHERS: Final = "of_others"
"""The value that marks a line of other code; it is in no line that is written."""
_NOT_VALUES: Final = frozenset({"event", "level", "component", "time", "exc_info", "node"})


class Event(NamedTuple):
    """One event."""

    number: int
    """Grows by one; from 1 on in each process."""
    unix_ms: int
    level: str
    component: str
    text: str
    values: str
    """JSON object of the values by name."""


class Events:
    """The last `COUNT_MAX` events of this process; a processor of structlog."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._events: Final = deque[Event](maxlen=COUNT_MAX)
        self.began_unix_ms: Final = time.time_ns() // 1_000_000
        """Names the process: numbers of another one mean other events."""

    def __call__(
        self, _logger: object, _method: str, line: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        """Keep a line, and pass it on."""
        component = str(line.get("component", ""))
        levels = _LEVELS_OF_OTHERS if line.pop(OF_OTHERS, False) else _LEVELS
        if line.get("level") in levels and component:
            values = {name: value for name, value in line.items() if name not in _NOT_VALUES}
            if isinstance(error := line.get("exc_info"), BaseException):
                values["error"] = f"{type(error).__name__}: {error}"
            self._events.append(
                Event(
                    next(self._numbers),
                    time.time_ns() // 1_000_000,
                    line["level"],
                    component,
                    str(line.get("event", ""))[:SIZE_CHARACTERS_MAX],
                    _bounded(values),
                )
            )
        return line

    def after(self, number: int, began_unix_ms: int = 0, count_max: int = 0) -> list[Event]:
        """Return the events behind a number, the oldest first; with `count_max` the last ones.

        A number of another process, which began at another time, counts as 0."""
        number = number if began_unix_ms in (0, self.began_unix_ms) else 0
        newer = [event for event in list(self._events) if event.number > number]
        return newer[-count_max:]


def _bounded(values: dict[str, Any]) -> str:
    """Return values as JSON, those that are too large as a cut text."""
    text = json.dumps(values, default=str, ensure_ascii=False)
    if len(text) <= SIZE_CHARACTERS_MAX:
        return text
    share = SIZE_CHARACTERS_MAX // len(values)
    return json.dumps({name[:share]: str(value)[:share] for name, value in values.items()})


EVENTS: Final = Events()
"""Those of this process; `configure` hands it the lines."""
