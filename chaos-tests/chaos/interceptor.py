"""Control of the faults that nodes apply to their own messages (node/peers/faults.py).

Owns the file that all nodes of a cluster read; must not know processes. A rename makes a change
atomic: one change cuts several links at one moment.
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
        """Set the rule of every link: chances `drop`, `double`, `late`, `flip`, and `late_ms`."""
        self._write({EVERY_LINK: rule})

    def cut(self, links: Iterable[tuple[int, int]]) -> None:
        """Lose all messages on these links, (source, target)."""
        self._write({f"{source}>{target}": {"drop": 1.0} for source, target in links})

    def slow(self, links: Iterable[tuple[int, int]], late_ms: float) -> None:
        """Delay the messages on these links by up to `late_ms`."""
        rule = {"late": 1.0, "late_ms": late_ms}
        self._write({f"{source}>{target}": rule for source, target in links})

    def flip(self, links: Iterable[tuple[int, int]], chance: float) -> None:
        """Flip a bit in some of the messages on these links."""
        self._write({f"{source}>{target}": {"flip": chance} for source, target in links})

    def hold(self, node: int, what: str, duration_ms: int) -> None:
        """Hold the `loop` of events of a node once, for this duration, or the `lock` of its
        interpreter: no thread of it runs."""
        self._write({f"hold {node}": {f"{what}_ms": duration_ms}})

    def clear(self) -> None:
        """Let messages through again."""
        self._path.unlink(missing_ok=True)

    def counts(self) -> Counter[str]:
        """Return the counts of all nodes: `dropped`, `doubled`, `late`, `flipped`, `held`."""
        by_kind: Counter[str] = Counter()
        for path in self._path.parent.glob(f"{self._path.name}.*"):
            # Beside the counts lies, for a moment, a file that a node is about to rename.
            if path.suffix[1:].isdecimal():
                by_kind.update(json.loads(path.read_text("utf-8")))
        return by_kind

    def _write(self, rules: dict[str, dict[str, float]]) -> None:
        temporary = self._path.with_suffix(".tmp")
        temporary.write_text(json.dumps(rules), "utf-8")
        temporary.replace(self._path)
