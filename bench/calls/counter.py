"""Counts calls of the interpreter on one thread, by function.

Owns what a call is: the events `call` and `c_call` of `sys.setprofile`, as cProfile counts them. A
coroutine that goes on is a call, and so is a function in C; the making of an object of a class in C
is none. cProfile itself is not used: from Python 3.12 on it counts all threads of a process, and it
does not say from where functions in C were called. Must not know what runs.
"""

import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final, Self

_PACKAGE: Final = f"{Path(__file__).parents[1]}/"
_ROOT: Final = f"{Path(__file__).parents[2]}/"
_LIBRARIES: Final = ("site-packages/", f"python{sys.version_info[0]}.{sys.version_info[1]}/")


@dataclass(slots=True)
class CallCounts:
    """Calls by function. Functions are named `file function`, those in C by their name."""

    python: Counter[str] = field(default_factory=Counter)
    """Calls of functions in Python, by function."""
    c: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Calls of functions in C, by the function in Python that calls and the one that is called."""

    @property
    def total(self) -> int:
        """Count of all calls."""
        return self.python.total() + self.c.total()

    def to_json(self) -> dict[str, Any]:
        """Return lists that JSON can hold."""
        return {
            "python": [[name, count] for name, count in self.python.items()],
            "c": [[caller, name, count] for (caller, name), count in self.c.items()],
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Return what `to_json` was made of."""
        return cls(
            Counter(dict(value["python"])),
            Counter({(caller, name): count for caller, name, count in value["c"]}),
        )


class CallCounter:
    """Counts on the thread that starts it. Functions of `bench` and what they call directly
    in C are left out, so that the measurement does not count itself."""

    def __init__(self) -> None:
        """Create a counter that does not run yet."""
        self._python: Counter[CodeType] = Counter()
        self._c: Counter[tuple[CodeType, str]] = Counter()

    def start(self) -> None:
        """Count from now on, from zero."""
        python: Counter[CodeType] = Counter()
        c: Counter[tuple[CodeType, str]] = Counter()
        self._python, self._c = python, c

        def on_event(frame: FrameType, event: str, called: Any) -> None:
            if event == "call":
                python[frame.f_code] += 1
            elif event == "c_call":
                c[frame.f_code, called.__qualname__] += 1

        sys.setprofile(on_event)

    def stop(self) -> CallCounts:
        """End the count and return it."""
        sys.setprofile(None)
        counts = CallCounts()
        for code, count in self._python.items():
            if not code.co_filename.startswith(_PACKAGE):
                counts.python[_name(code)] += count
        for (code, called), count in self._c.items():
            if not code.co_filename.startswith(_PACKAGE):
                counts.c[_name(code), called] += count
        return counts


def _name(code: CodeType) -> str:
    file = code.co_filename.removeprefix(_ROOT)
    for folder in _LIBRARIES:
        file = file.rpartition(folder)[2]
    return f"{file} {code.co_qualname}"
