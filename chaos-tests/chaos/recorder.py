"""One time line: calls of clients and their answers, faults, and facts that became true.

Owns operation and process numbers and the clock, one for all of a run. Must not judge anything.
After an unknown outcome a client continues under a new process number: its call may still take
effect.
"""

import json
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import quorumlog.errors
from checkers import history
from checkers.history import AppendCall, Drain, FaultNote, Kind, Operation, Request, Result
from raft.errors import Outcome

now_ns: Final = time.monotonic_ns


def is_write(operation: Operation) -> bool:
    """Whether a call writes."""
    return operation.kind in (Kind.APPEND, Kind.PUT)


def written_value(write: Operation) -> str:
    """Return the value of an append or a put."""
    request = write.request
    return str(request.value if isinstance(request, AppendCall) else request)


@dataclass(slots=True)
class Event:
    """An event on the time line that is no operation: a fault, a phase, a node's report."""

    at_ns: int
    kind: str
    text: str
    until_ns: int | None = None
    """End of a fault."""


class Recorder:
    """Events and operations of one scenario."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.events: list[Event] = []
        self.outcomes: Counter[str] = Counter()
        """Operations by kind and outcome."""
        self.errors: Counter[str] = Counter()
        """Errors by code."""
        self.drains: list[Drain] = []
        """Final content of every replica."""
        self.notes: list[FaultNote] = []
        """Faults that excuse a violation."""
        self.kept: dict[str, list[Any]] = {}
        """Additional histories of a scenario, by name."""
        self.began_ns: Final = now_ns()
        self._process = 0

    def new_process(self) -> int:
        """Return a process number that was not used before."""
        self._process += 1
        return self._process

    def note(self, kind: str, text: str, at_ns: int | None = None) -> Event:
        """Record an event."""
        event = Event(now_ns() if at_ns is None else at_ns, kind, text)
        self.events.append(event)
        return event

    def begin(self, process: int, kind: Kind, queue: str, request: Request = None) -> Operation:
        """Return a call that begins now. `done` or `failed` records it."""
        return Operation(-1, process, kind, queue, now_ns(), None, Outcome.UNKNOWN, request, None)

    def done(self, call: Operation, result: Result, *, node: int = 0, term: int = 0) -> None:
        """Record a call that returned."""
        self._add(
            call._replace(
                return_ns=now_ns(), outcome=Outcome.APPLIED, result=result, node=node, term=term
            )
        )

    def failed(self, call: Operation, error: quorumlog.errors.QuorumlogError) -> int:
        """Record a failed call; return the process number under which its client continues."""
        self.errors[error.code] += 1
        # A read has no effect. An applied append is at a place that the client does not know.
        if is_write(call) and Outcome(error.outcome.value) is not Outcome.NOT_APPLIED:
            self._add(call)
            return self.new_process()
        self._add(call._replace(outcome=Outcome.NOT_APPLIED, return_ns=now_ns()))
        return call.process

    def _add(self, operation: Operation) -> None:
        self.outcomes[f"{operation.kind.value} {_WORDS[operation.outcome]}"] += 1
        self.operations.append(operation._replace(op_id=len(self.operations)))

    def save(self, directory: Path) -> None:
        """Write the history, the drains, the notes and the events as lines of JSON, which
        `python -m pipeline history-check` reads, and beside them a scenario's own histories."""
        for name, lines in self.kept.items():
            with (directory / f"{name}.jsonl").open("w", encoding="utf-8") as file:
                file.writelines(f"{json.dumps(line)}\n" for line in lines)
        with (directory / "history.jsonl").open("w", encoding="utf-8") as file:
            history.write(self.operations, file)
        with (directory / "drains.jsonl").open("w", encoding="utf-8") as file:
            file.writelines(
                f"{line}\n" for drain in self.drains for line in history.drain_to_json(drain)
            )
        with (directory / "notes.jsonl").open("w", encoding="utf-8") as file:
            file.writelines(f"{history.note_to_json(note)}\n" for note in self.notes)
        with (directory / "events.jsonl").open("w", encoding="utf-8") as file:
            for event in sorted(self.events, key=lambda event: event.at_ns):
                file.write(json.dumps(asdict(event)) + "\n")


_WORDS: Final = {
    Outcome.APPLIED: "ok",
    Outcome.NOT_APPLIED: "not applied",
    Outcome.UNKNOWN: "unknown",
}
