"""The lines that an input reaches in some modules, as a small map, and a limit of their count.

Owns the tracer; must not know targets. The map has a counter for each pair of consecutive
lines, folded into 64 Ki places, as in AFL. Only the power of two of a count matters, so an input
that runs a loop twice as often is new, too. Places follow from file names and lines alone, so two
processes see the same places. The tracer allocates nothing while an input runs, since the run
measures the memory of the input.
"""

import importlib
import sys
import zlib
from types import FrameType
from typing import Any, Final, Self

_PLACE_COUNT: Final = 1 << 16
_MASK: Final = _PLACE_COUNT - 1
_SPREAD: Final = 40_503
"""Takes neighbouring lines far apart: 2^16 by the golden ratio, odd."""
_CLEAN: Final = bytes(_PLACE_COUNT)
_BUCKETS: Final = bytes(
    0 if count == 0 else 1 << min(7, count.bit_length() - 1) for count in range(256)
)


class StepsExceededError(BaseException):
    """An input ran more lines than it may. No parser catches it: it is no Exception."""


class LineTrace:
    """Traces the thread inside of its `with`."""

    def __init__(self, modules: tuple[str, ...]) -> None:
        self._bases: Final[dict[str, int]] = {}
        for name in modules:
            module = importlib.import_module(name)
            assert module.__file__ is not None, f"{name} has no file"
            self._bases[module.__file__] = zlib.crc32(name.encode()) & _MASK
        self._counts = bytearray(_PLACE_COUNT)
        self._known = 0
        self._previous = 0
        self._step_count_max = 0
        self.step_count = 0
        self._local = self._on_line
        self._former: Any = None

    def limit(self, step_count_max: int) -> Self:
        """Begin a new input that may run at most `step_count_max` lines."""
        self._counts[:] = _CLEAN
        self._previous = self.step_count = 0
        self._step_count_max = step_count_max
        return self

    def __enter__(self) -> Self:
        self._former = sys.gettrace()
        sys.settrace(self._on_call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._former)

    def is_new(self) -> bool:
        """Whether the last input reached what none did before; from now on it is known."""
        reached = int.from_bytes(self._counts.translate(_BUCKETS), "little")
        if not reached & ~self._known:
            return False
        self._known |= reached
        return True

    @property
    def edge_count(self) -> int:
        """Pairs of lines that were reached by any input so far."""
        return _PLACE_COUNT - self._known.to_bytes(_PLACE_COUNT, "little").count(0)

    def _on_call(self, frame: FrameType, _event: str, _arg: object) -> Any:
        return self._local if frame.f_code.co_filename in self._bases else None

    def _on_line(self, frame: FrameType, event: str, _arg: object) -> Any:
        if event == "line":
            base = self._bases[frame.f_code.co_filename]
            place = (base + frame.f_lineno * _SPREAD) & _MASK
            at = place ^ self._previous
            if self._counts[at] < 255:
                self._counts[at] += 1
            self._previous = place >> 1
            self.step_count += 1
            if self.step_count > self._step_count_max:
                raise StepsExceededError
        return self._local
