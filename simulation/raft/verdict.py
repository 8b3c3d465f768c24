"""The error by which a run reports a finding."""

from __future__ import annotations


class InvariantError(Exception):
    """An invariant of fault-matrix section 2 is broken. Shrinking keeps `code` constant."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(code, detail)
        self.code, self.detail = code, detail

    def __str__(self) -> str:
        return f"{self.code}: {self.detail}"
