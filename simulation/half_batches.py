"""The first records of a batch that a power loss of a master left, and its retry behind them.

Owns the one way in which master-slave mode may store a message twice (docs/guarantees.md): the
records become messages of their own, of an unknown outcome, and the rest is judged as usual.
"""

from collections.abc import Iterable, Sequence

from chaos.recorder import is_write, written_value

from checkers.history import AppendCall, Drain, Operation, Records, Seen, Value
from raft.errors import Outcome


def apart(
    operations: Sequence[Operation], drains: Iterable[Drain]
) -> tuple[list[Operation], list[Drain]]:
    """Return a history in which records of half batches have names of their own.

    A copy without the order of the whole batch behind it keeps its name: the judge reports it.
    """
    halves: dict[tuple[str, int], Value] = {}
    separated = []
    for drain in drains:
        first, values = drain.first_offset, list(drain.values)
        last = {value: at for at, value in enumerate(values)}
        ahead = [last[value] - at for at, value in enumerate(values)]
        for at, value in enumerate(drain.values):
            if value is not None and ahead[at] and ahead[at + 1] in (0, ahead[at]):
                halves[drain.queue, first + at] = value
                values[at] = f"{value} at {first + at}"
        separated.append(drain._replace(values=values))
    sent = {written_value(write): write for write in operations if is_write(write)}
    named = [_named(operation, halves) for operation in operations]
    for (_, offset), value in halves.items():
        name = f"{value} at {offset}"
        request = AppendCall(name) if isinstance(sent[str(value)].request, AppendCall) else name
        call = sent[str(value)]._replace(request=request, result=None, return_ns=None)
        named.append(call._replace(outcome=Outcome.UNKNOWN))
    return named, separated


def _named(operation: Operation, halves: dict[tuple[str, int], Value]) -> Operation:
    queue, result = operation.queue, operation.result
    if isinstance(result, Seen) and (queue, result.index) in halves:
        return operation._replace(result=result._replace(value=f"{result.value} at {result.index}"))
    if not isinstance(result, Records):
        return operation
    records = tuple(
        (offset, f"{value} at {offset}" if (queue, offset) in halves else value)
        for offset, value in result.records
    )
    return operation._replace(result=result._replace(records=records))
