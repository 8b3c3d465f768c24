"""The judge of a run: planted violations are found, every one; clean histories are not accused."""

import gc
import time
from collections.abc import Callable
from random import Random

import chaos.scenarios  # noqa: F401  Registers them.
import pytest
from chaos.body import body_of, value_of
from chaos.clients import queue_name
from chaos.scenario import SCENARIOS
from chaos.verdict import judge

from checkers.history import AppendCall, Drain, HistoryReceipt, Kind, Operation, ReadCall, Records
from raft.errors import Outcome
from tests.chaos.histories import REGISTER, clean

History = tuple[list[Operation], list[Drain]]
Plant = Callable[[Random, History], str]
QUEUE = queue_name(0)
MILLION = 1_000_000


def _acked(history: History, kind: Kind = Kind.APPEND, queue: str = QUEUE) -> list[int]:
    return [
        at
        for at, op in enumerate(history[0])
        if op.kind is kind and op.queue == queue and op.outcome is Outcome.APPLIED
    ]


def _edit_drains(history: History, queue: str, edit: Callable[[list[object]], None]) -> None:
    """Change what every replica holds of a queue."""
    for at, drain in enumerate(history[1]):
        if drain.queue == queue:
            values: list[object] = list(drain.values)
            edit(values)
            history[1][at] = drain._replace(values=values)  # type: ignore[arg-type]


def lose_at_the_end(random: Random, history: History) -> str:
    """The last acked message is on no replica, as after a fail-over that forgot it."""
    at = _acked(history)[-1]
    receipt = history[0][at].result
    assert isinstance(receipt, HistoryReceipt)
    _edit_drains(history, QUEUE, lambda values: values.__delitem__(slice(receipt.offset, None)))
    return "lost"


def lose_a_put(random: Random, history: History) -> str:
    offset = history[0][_acked(history, Kind.PUT, REGISTER)[-1]].result
    assert isinstance(offset, int)
    _edit_drains(history, REGISTER, lambda values: values.__delitem__(slice(offset, None)))
    return "lost"


def lose_on_one_replica(random: Random, history: History) -> str:
    chosen = random.choice([d for d in history[1] if d.queue == QUEUE])
    history[1].remove(chosen)
    history[1].append(chosen._replace(values=chosen.values[:-9]))
    return "lost"


def lose_the_beginning(random: Random, history: History) -> str:
    """Every replica begins behind the first messages, and nothing was to expire."""
    count = random.randrange(1, 50)
    for at, drain in enumerate(history[1]):
        if drain.queue == QUEUE:
            history[1][at] = drain._replace(first_offset=count, values=drain.values[count:])
    return "lost"


def lose_the_beginning_of_one(random: Random, history: History) -> str:
    """One replica has lost its first file."""
    chosen = random.choice([d for d in history[1] if d.queue == QUEUE])
    history[1].remove(chosen)
    history[1].append(chosen._replace(first_offset=7, values=chosen.values[7:]))
    return "lost"


def swap(random: Random, history: History) -> str:
    at = random.randrange(100)

    def edit(values: list[object]) -> None:
        values[at], values[at + 1] = values[at + 1], values[at]

    _edit_drains(history, QUEUE, edit)
    return "divergence"


def double(random: Random, history: History) -> str:
    """A retry is stored twice."""
    receipt = history[0][random.choice(_acked(history))].result
    assert isinstance(receipt, HistoryReceipt)
    _edit_drains(history, QUEUE, lambda values: values.append(values[receipt.offset]))
    return "duplicate"


def change_a_byte(random: Random, history: History) -> str:
    at = random.randrange(100)

    def edit(values: list[object]) -> None:
        body = bytearray(body_of(str(values[at])))
        body[-1] ^= 1
        values[at] = value_of(bytes(body))

    _edit_drains(history, QUEUE, edit)
    return "divergence"


def punch_a_hole(random: Random, history: History) -> str:
    at = random.randrange(100)
    _edit_drains(history, QUEUE, lambda values: values.__setitem__(at, None))
    return "hole"


def resurrect(random: Random, history: History) -> str:
    """What was refused for certain is in the log."""
    refused = [op for op in history[0] if op.outcome is Outcome.NOT_APPLIED and op.queue == QUEUE]
    request = random.choice(refused).request
    assert isinstance(request, AppendCall)
    _edit_drains(history, QUEUE, lambda values: values.append(request.value))
    return "aborted_read"


def invent(random: Random, history: History) -> str:
    _edit_drains(history, QUEUE, lambda values: values.append("nobody sent this"))
    return "phantom"


def shift_time(random: Random, history: History) -> str:
    """An append is placed before others that had ended before it began."""
    at = random.choice(_acked(history)[:-5])
    late = 10**9
    history[0][at] = history[0][at]._replace(invoke_ns=late, return_ns=late + 5)
    return "real_time"


def read_stale(random: Random, history: History) -> str:
    """A deposed leader answers a linearizable read."""
    tails = _acked(history, Kind.TAIL)
    at = tails[-1]
    end = history[0][at].result
    assert isinstance(end, int)
    history[0][at] = history[0][at]._replace(result=end - 20)
    return "stale_read"


def get_stale(random: Random, history: History) -> str:
    """The register shows an old value."""
    gets = _acked(history, Kind.GET, REGISTER)
    history[0][gets[-1]] = history[0][gets[-1]]._replace(result=history[0][gets[0]].result)
    return "stale_read"


def step_back(random: Random, history: History) -> str:
    """One reader gets the same messages again."""
    polls = [at for at in _acked(history, Kind.POLL) if history[0][at].result != Records(())]
    reader, records = history[0][polls[0]].process, history[0][polls[0]].result
    again = next(at for at in polls[1:] if history[0][at].process == reader)
    history[0][again] = history[0][again]._replace(result=records)
    return "non_monotonic"


def skip(random: Random, history: History) -> str:
    """One reader passes over a message."""
    values = history[1][0].values
    at = random.randrange(len(values) - 3)
    for step, offset in enumerate((at, at + 2)):
        records = Records(((offset, values[offset]),))  # type: ignore[arg-type]
        late_ns, call = 10**9 + 10 * step, ReadCall(offset, 1)
        history[0].append(
            Operation(late_ns, 77, Kind.POLL, QUEUE, late_ns, late_ns + 1, Outcome.APPLIED, call,
                      records)
        )  # fmt: skip
    return "skip"


def place_second_first(random: Random, history: History) -> str:
    """The second append of one client lies before its first, with overlapping time stamps."""
    low, high = sorted(random.sample(_acked(history), 2))
    first = history[0][high]._replace(process=55, invoke_ns=0, return_ns=10**9)
    second = history[0][low]._replace(process=55, invoke_ns=1, return_ns=10**9)
    history[0][low], history[0][high] = second, first
    return "own_order"


PLANTS: tuple[Plant, ...] = (
    lose_at_the_end,
    lose_a_put,
    lose_on_one_replica,
    lose_the_beginning,
    lose_the_beginning_of_one,
    swap,
    double,
    change_a_byte,
    punch_a_hole,
    resurrect,
    invent,
    shift_time,
    read_stale,
    get_stale,
    step_back,
    skip,
    place_second_first,
)


@pytest.mark.parametrize("count", [5, pytest.param(20, marks=pytest.mark.long)])
@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_planted_violation_is_always_found(plant: Plant, count: int) -> None:
    for seed in range(count):
        history = clean(seed, 1_500)
        rule = plant(Random(seed), history)
        rules = {violation.split(" ", 1)[0] for violation in judge(*history)}
        assert rule in rules, f"seed {seed}: planted {rule}, found {rules}"


def test_only_a_replica_that_may_forget_begins_later() -> None:
    for plant in (lose_the_beginning, lose_the_beginning_of_one):
        history = clean(3, 500)
        plant(Random(3), history)
        assert all("before offset" in violation for violation in judge(*history))
        assert judge(*history, may_expire=True) == []


def test_only_scenarios_of_retention_may_forget() -> None:
    forgetful = {one.name for one in SCENARIOS.values() if one.profile.forgets}
    assert forgetful == {"snapshot", "kill-in-snapshots"}


@pytest.mark.parametrize("count", [5, pytest.param(20, marks=pytest.mark.long)])
def test_clean_histories_are_not_accused(count: int) -> None:
    for seed in range(count):
        assert judge(*clean(seed, 500)) == []


@pytest.mark.long
def test_a_million_operations_are_checked_in_seconds() -> None:
    """5 s is the target (fault-matrix 11); the bound is loose for machines that do other things."""
    gc.disable()  # Or making them would take longer than the test.
    try:
        operations, drains = clean(7, MILLION)
    finally:
        gc.enable()
    began = time.process_time()
    assert judge(operations, drains) == []
    took = time.process_time() - began
    print(f"{len(operations):,} operations were checked in {took:.1f} s of processor time")
    assert took < 30


def test_a_body_tells_its_value_and_any_change_of_it() -> None:
    body = body_of("run-w0-17")
    assert value_of(body) == "run-w0-17"
    for at in range(len(body)):
        damaged = bytearray(body)
        damaged[at] ^= 4
        assert value_of(bytes(damaged)) != "run-w0-17"
