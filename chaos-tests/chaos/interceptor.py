"""Steers what nodes do to the messages they send each other (node/peers/faults.py).

Owns the file that all nodes of a cluster read; must not know processes. A rename makes a change
whole, so many links are cut at one moment.
"""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Final

EVERY_LINK: Final = "*"


class Interceptor:
    """The rules of one cluster, by link."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def set(self, **rule: float) -> None:
        """Do this on every link: chances `drop`, `double`, `late`, `flip`, and `late_ms`."""
        self._write({EVERY_LINK: rule})

    def cut(self, links: Iterable[tuple[int, int]]) -> None:
        """Lose everything that is sent on these links, (source, target)."""
        self._write({f"{source}>{target}": {"drop": 1.0} for source, target in links})

    def slow(self, links: Iterable[tuple[int, int]], late_ms: float) -> None:
        """Let what is sent on these links be late by up to so much."""
        rule = {"late": 1.0, "late_ms": late_ms}
        self._write({f"{source}>{target}": rule for source, target in links})

    def flip(self, links: Iterable[tuple[int, int]], chance: float) -> None:
        """Flip a bit in some of what is sent on these links."""
        self._write({f"{source}>{target}": {"flip": chance} for source, target in links})

    def hold_loop(self, node: int, duration_ms: int) -> None:
        """Hold the event loop of a node once, for so long."""
        self._write({f"hold {node}": {"loop_ms": duration_ms}})

    def hold_interpreter(self, node: int, duration_ms: int) -> None:
        """Keep the interpreter's lock of a node once, for so long: no thread of it runs."""
        self._write({f"hold {node}": {"lock_ms": duration_ms}})

    def clear(self) -> None:
        """Let messages through again."""
        self._path.unlink(missing_ok=True)

    def counts(self) -> Counter[str]:
        """What all nodes did so far: `dropped`, `doubled`, `late`, `flipped`, `held`."""
        found: Counter[str] = Counter()
        for path in self._path.parent.glob(f"{self._path.name}.*"):
            # Beside them lies, for a moment, what a node is about to rename.
            if path.suffix[1:].isdecimal():
                found.update(json.loads(path.read_text("utf-8")))
        return found

    def _write(self, rules: dict[str, dict[str, float]]) -> None:
        temporary = self._path.with_suffix(".tmp")
        temporary.write_text(json.dumps(rules), "utf-8")
        temporary.replace(self._path)
