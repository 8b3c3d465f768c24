"""The results of a comparison so far, a line of JSON for each finished session.

Owns the file, so that an interrupted run continues where it was. A session that was under way then
is not in it, and is repeated. Must not know what the cells mean.
"""

import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

_NAME: Final = "journal.jsonl"


class OtherRunError(Exception):
    """The directory holds a run of another plan."""

    code, retryable, outcome = "bench.other_run", False, None

    def __init__(self, directory: str, names: list[str]) -> None:
        super().__init__(directory, names)
        self.directory, self.names = directory, names

    def __str__(self) -> str:
        return (
            f"{self.directory} holds a run that differs in {', '.join(self.names)}; "
            "give another directory with -o, or run it as that one was run"
        )


class RunUnderWayError(Exception):
    """Another process adds sessions to the journal."""

    code, retryable, outcome = "bench.run_under_way", True, None

    def __str__(self) -> str:
        return f"{self.args[0]} is of a run under way; give another directory with -o, or wait"


class SessionJournal:
    """Finished sessions, by their keys."""

    def __init__(self, directory: Path, plan: Mapping[str, Any]) -> None:
        """Open the journal of a directory, or create it. Raises OtherRunError, RunUnderWayError."""
        directory.mkdir(parents=True, exist_ok=True)
        self._path = directory / _NAME
        self._file = self._path.open("a", encoding="utf-8")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise RunUnderWayError(str(directory)) from None
        data = self._path.read_bytes()
        # A line without its newline was being written when the run was interrupted.
        end = data.rfind(b"\n") + 1
        os.truncate(self._path, end)
        lines = [json.loads(line) for line in data[:end].splitlines()]
        wanted = json.loads(json.dumps(plan))
        if not lines:
            lines = [{"plan": wanted}]
            self._append(lines[0])
        self.plan: dict[str, Any] = lines[0]["plan"]
        names = [name for name in wanted if name != "begun" and wanted[name] != self.plan.get(name)]
        if names:
            raise OtherRunError(str(directory), names)
        self.sessions: dict[str, dict[str, Any]] = {line["key"]: line for line in lines[1:]}

    def add(self, session: Mapping[str, Any]) -> None:
        """Append a finished session."""
        self.sessions[session["key"]] = dict(session)
        self._append(session)

    def _append(self, line: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        os.fdatasync(self._file.fileno())
