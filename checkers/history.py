"""Calls of clients and their results: the record that every checker judges, and its file format.

Owns the shape of an operation and JSON lines, one operation per line. Must not know the origin of a
history: the simulator and the tests against real processes write the same. An operation is a named
tuple and its request and result are small tuples, because a long run holds a million of them.

A process has one call open at a time. After an outcome of `unknown` it continues under a new
process number: the open call may still take effect at any later moment."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Final, NamedTuple, TextIO, TypeAlias

from raft.errors import Outcome

Value: TypeAlias = int | str
"""Value of one write, unique over the whole history; long bodies are recorded by id or digest."""

NEVER_NS: Final = 1 << 62
"""Return time of a call that never returned: it may take effect at any time."""


class Kind(StrEnum):
    """Kind of a call. Its value is its name in the file."""

    APPEND = "append"
    TAIL = "tail"
    READ = "read"
    POLL = "poll"
    ASSIGN = "assign"
    PUT = "put"
    GET = "get"
    CAS = "cas"


class HistoryDurability(StrEnum):
    """Claim of a receipt, weakest first."""

    APPENDED = "appended"
    REPLICATED = "replicated"
    QUORUM_DURABLE = "quorum_durable"


class AppendCall(NamedTuple):
    value: Value
    producer: int | None = None
    sequence: int | None = None


class HistoryReceipt(NamedTuple):
    """Result of an append: its offset and the durability at the time of the answer."""

    offset: int
    durability: HistoryDurability = HistoryDurability.QUORUM_DURABLE


class ReadCall(NamedTuple):
    """Request of a read or a poll: at most `count_max` records from `offset` on.

    `at_least` asks to wait until the replica has applied this many records (0: no wait)."""

    offset: int
    count_max: int
    at_least: int = 0


class Records(NamedTuple):
    """Result of a read or poll: consecutive pairs (offset, value), and the end the replica saw."""

    records: tuple[tuple[int, Value], ...]
    end: int | None = None


class Seen(NamedTuple):
    """Result of a get: the value and the index its put returned; (None, -1) before any put."""

    value: Value | None
    index: int  # type: ignore[assignment]  # Hides tuple.index, which is not needed here.


class CasCall(NamedTuple):
    """Request of a compare-and-set: swap in `new` if the register holds `expected`.

    `expected` None: swap in any case. `new` None: only read."""

    expected: int | None
    new: int | None


class Swapped(NamedTuple):
    """Result of a compare-and-set: whether it swapped, and the value of the register before."""

    is_swapped: bool
    previous: int


Request: TypeAlias = AppendCall | ReadCall | CasCall | tuple[str, ...] | Value | None
Result: TypeAlias = HistoryReceipt | Records | Seen | Swapped | int | None


class Operation(NamedTuple):
    """One call of one client. Times are monotonic nanoseconds of one clock per host."""

    op_id: int
    process: int
    kind: Kind
    queue: str
    invoke_ns: int
    return_ns: int | None
    outcome: Outcome
    request: Request
    """AppendCall for append; ReadCall for read and poll; queue names for assign; the value for
    put; CasCall for cas."""
    result: Result
    """Receipt for append; end for tail; Records for read and poll; index for put; Seen for get;
    Swapped for cas."""
    node: int = 0
    term: int = 0


class Drain(NamedTuple):
    """All values of a queue on one replica after healing. `None` marks an offset that is
    missing."""

    replica: int
    queue: str
    first_offset: int
    values: Sequence[Value | None]


class FaultNote(NamedTuple):
    """A fault on the same time line, as far as a receipt's claim depends on it."""

    kind: str
    """"power_loss" of a majority, or "mode" when the durability in force changes."""
    at_ns: int
    durability: HistoryDurability = HistoryDurability.QUORUM_DURABLE
    """For "mode": the strongest receipt allowed from then on."""


def acked(operation: Operation) -> bool:
    """Whether the caller was told that the operation was applied."""
    return operation.outcome is Outcome.APPLIED


def to_json(operation: Operation) -> str:
    """Return one line of a history file, without its end."""
    fields = operation._asdict()
    fields["kind"] = operation.kind.value
    fields["outcome"] = "ok" if acked(operation) else operation.outcome.value
    for name in ("request", "result"):
        value = fields[name]
        if isinstance(value, Swapped):
            fields[name] = {"is_swapped": value.is_swapped, "found": value.previous}
        elif hasattr(value, "_asdict"):
            fields[name] = value._asdict()
    return json.dumps(fields, separators=(",", ":"))


def from_json(line: str) -> Operation:
    """Return the operation of one line. Raises ValueError for a line of another format."""
    try:
        fields = json.loads(line)
        kind = Kind(fields["kind"])
        outcome = Outcome.APPLIED if fields["outcome"] == "ok" else Outcome(fields["outcome"])
        return Operation(
            fields["op_id"],
            fields["process"],
            kind,
            fields["queue"],
            fields["invoke_ns"],
            fields["return_ns"],
            outcome,
            _request(kind, fields["request"]),
            _result(kind, fields["result"]),
            fields.get("node", 0),
            fields.get("term", 0),
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a line of a history: {line[:200]!r}") from error


def _request(kind: Kind, data: object) -> Request:
    if isinstance(data, dict):
        if kind is Kind.CAS:
            return CasCall(**data)
        return AppendCall(**data) if kind is Kind.APPEND else ReadCall(**data)
    if isinstance(data, list):
        return tuple(str(queue) for queue in data)
    if data is None or isinstance(data, int | str):
        return data
    raise TypeError(f"request of {kind.value}: {data!r}")


def _result(kind: Kind, data: object) -> Result:
    if isinstance(data, dict):
        if kind is Kind.APPEND:
            return HistoryReceipt(data["offset"], HistoryDurability(data["durability"]))
        if kind is Kind.GET:
            return Seen(**data)
        if kind is Kind.CAS:
            return Swapped(data["is_swapped"], data["found"])
        records = tuple((int(offset), value) for offset, value in data["records"])
        return Records(records, data["end"])
    if data is None or isinstance(data, int):
        return data
    raise TypeError(f"result of {kind.value}: {data!r}")


def write(operations: Iterable[Operation], file: TextIO) -> None:
    """Write a history as JSON lines."""
    for operation in operations:
        file.write(to_json(operation) + "\n")


DRAIN_VALUES_MAX: Final = 10_000
"""Values in one line of a file of drains: a longer drain takes several lines."""


def drain_to_json(drain: Drain) -> Iterator[str]:
    """Yield the lines of a drain, without their ends; each is a drain of consecutive offsets."""
    count = len(drain.values)
    for lo in range(0, max(count, 1), DRAIN_VALUES_MAX):
        values = list(drain.values[lo : lo + DRAIN_VALUES_MAX])
        part = drain._replace(first_offset=drain.first_offset + lo, values=values)
        yield json.dumps(part._asdict(), separators=(",", ":"))


def drain_from_json(line: str) -> Drain:
    """Return the part of a drain in one line. Raises ValueError for a line of another format."""
    try:
        fields = json.loads(line)
        values = [None if value is None else _drained(value) for value in fields["values"]]
        return Drain(
            int(fields["replica"]), str(fields["queue"]), int(fields["first_offset"]), values
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a line of drains: {line[:200]!r}") from error


def _drained(value: object) -> Value:
    if isinstance(value, int | str):
        return value
    raise TypeError(f"value {value!r}")


def note_to_json(note: FaultNote) -> str:
    """Return the line of a note, without its end."""
    return json.dumps(note._asdict(), separators=(",", ":"))


def note_from_json(line: str) -> FaultNote:
    """Return the note of one line. Raises ValueError for a line of another format."""
    try:
        fields = json.loads(line)
        return FaultNote(
            str(fields["kind"]), int(fields["at_ns"]), HistoryDurability(fields["durability"])
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a line of notes: {line[:200]!r}") from error
