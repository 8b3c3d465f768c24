"""The directory of one run of a job: a new one, or one that the caller named.

Owns whose it is: what the caller named, and what a run that failed left behind, is never removed.
A run that is interrupted leaves nothing.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

from quorumlog.command_errors import CliError


@dataclass(frozen=True, slots=True)
class JobDirectory:
    """A directory that no other run has."""

    path: str
    is_temporary: bool

    @classmethod
    def make(cls, named: str | None) -> Self:
        """Take the named directory, which must not exist or be empty, or make a temporary one."""
        if named is None:
            return cls(tempfile.mkdtemp(prefix="quorumlog-quickstart-"), is_temporary=True)
        if os.path.isdir(named) and os.listdir(named):
            raise CliError(
                what=f"{named} is not empty",
                why="a job begins with nothing and overwrites nothing",
                do="name a new directory, or remove this one",
            )
        return cls(named, is_temporary=False)

    @contextmanager
    def undone(self) -> Iterator[None]:
        """Remove a directory that was made here if the work in the block is interrupted."""
        try:
            yield
        except KeyboardInterrupt:
            self.remove_temporary()
            raise

    def remove_temporary(self) -> str | None:
        """Remove a directory that was made here; return the path of one that stays."""
        if not self.is_temporary:
            return self.path
        shutil.rmtree(self.path)
        return None
