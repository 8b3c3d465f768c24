"""The check of each queue alone finds exactly what the check of the whole history finds."""

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, cast

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from checkers import history
from checkers.history import (
    AppendCall,
    Drain,
    FaultNote,
    HistoryDurability,
    HistoryReceipt,
    Kind,
    Operation,
    ReadCall,
    Records,
    Seen,
)
from pipeline.errors import PipelineError
from pipeline.jobs.history_check import (
    HistoryPart,
    check_queue,
    history_check,
    judge,
    read_parts,
    whole_drains,
)
from qlog import main
from raft.errors import Outcome
from tests.checkers.histories import call, clean_history

QUEUES = ("q0", "q1", "q2")
REGISTER = "r"
Plant = Callable[[Random, "History"], None]


class History:
    """Three queues and a register, their operations mixed in time as clients mix them."""

    def __init__(self, random: Random, count: int = 80) -> None:
        self.random = random
        self.operations: list[Operation] = []
        self.drains: list[Drain] = []
        self.notes: list[FaultNote] = []
        for number, queue in enumerate(QUEUES):
            operations, drains = clean_history(random, count)
            # Processes are shared by all queues, values are not.
            self.operations += [_moved(one, queue, 10_000 * number) for one in operations]
            self.drains += [
                drain._replace(queue=queue, values=[f"{queue}-{v}" for v in drain.values])
                for drain in drains
            ]
        for offset in range(10):
            span = (10 * offset, 10 * offset + 4)
            put = call(90_000 + offset, Kind.PUT, span, f"r-{offset}", offset)
            get = call(91_000 + offset, Kind.GET, (span[0] + 5, span[1] + 5), None,
                       Seen(f"r-{offset}", offset))  # fmt: skip
            self.operations += [one._replace(queue=REGISTER) for one in (put, get)]
        self.operations.sort(key=lambda one: one.op_id % 10_000)  # Each queue's in their order.

    def expected(self) -> Counter[tuple[str, str, str]]:
        """What the whole check says."""
        drains = [drain for queue in QUEUES for drain in whole_drains(
            one for one in self.drains if one.queue == queue)]  # fmt: skip
        violations = judge(self.operations, drains, self.notes)
        return Counter((one.rule, one.queue, one.detail) for one in violations)

    def save(self, directory: Path) -> Path:
        directory.mkdir()
        with (directory / "history.jsonl").open("w") as file:
            history.write(self.operations, file)
            file.write('{"op_id": 1, "proc')  # A client was killed while it wrote.
        with (directory / "drains.jsonl").open("w") as file:
            for drain in self.drains:
                file.writelines(f"{line}\n" for line in history.drain_to_json(drain))
        with (directory / "notes.jsonl").open("w") as file:
            file.writelines(f"{history.note_to_json(note)}\n" for note in self.notes)
        return directory

    def acked(self, queue: str) -> list[int]:
        return [
            at
            for at, one in enumerate(self.operations)
            if one.queue == queue and one.kind is Kind.APPEND and one.outcome is Outcome.APPLIED
        ]

    def values(self, replica: int, queue: str) -> list[Any]:
        """Return the values of a drain; a change of them is one of the history."""
        chosen = (d for d in self.drains if (d.replica, d.queue) == (replica, queue))
        return cast("list[Any]", next(chosen).values)


def _moved(one: Operation, queue: str, op_id: int) -> Operation:
    request, result = one.request, one.result
    if isinstance(request, AppendCall):
        request = request._replace(value=f"{queue}-{request.value}")
    if isinstance(result, Records):
        pairs = tuple((offset, f"{queue}-{value}") for offset, value in result.records)
        result = result._replace(records=pairs)
    return one._replace(queue=queue, op_id=one.op_id + op_id, request=request, result=result)


def _lost(random: Random, history: History) -> None:
    queue = random.choice(QUEUES)
    receipt = history.operations[random.choice(history.acked(queue))].result
    assert isinstance(receipt, HistoryReceipt)
    del history.values(1, queue)[receipt.offset]


def _swapped(random: Random, history: History) -> None:
    values = history.values(2, random.choice(QUEUES))
    values[0], values[1] = values[1], values[0]


def _phantom(random: Random, history: History) -> None:
    history.values(3, random.choice(QUEUES))[2] = "nobody's"


def _of_another_queue(random: Random, history: History) -> None:
    """A message turns up in a queue that it was not sent to."""
    value = history.drains[-1].values[0]
    for replica in (1, 2, 3):
        history.values(replica, "q0").append(value)


def _hole(random: Random, history: History) -> None:
    history.values(1, random.choice(QUEUES))[1] = None


def _stale(random: Random, history: History) -> None:
    queue = random.choice(QUEUES)
    late = max(one.return_ns or 0 for one in history.operations) + 10
    tail = call(99_999, Kind.TAIL, (late, late + 1), None, 0)
    history.operations.append(tail._replace(queue=queue))


def _late_append(random: Random, history: History) -> None:
    at = history.acked(random.choice(QUEUES))[0]
    late = max(one.return_ns or 0 for one in history.operations) + 10
    history.operations[at] = history.operations[at]._replace(invoke_ns=late, return_ns=late + 5)


def _skipped(random: Random, history: History) -> None:
    """Two readers skip; one had got its queue anew before, which excuses it."""
    late = 10**6
    for process, queue in ((77, "q1"), (78, "q2")):
        values = history.values(1, queue)
        for step, offset in enumerate((0, 3)):
            if step and queue == "q2":
                assign = call(late, Kind.ASSIGN, (late, late), ("q2", "q0"), None, process=78)
                history.operations.append(assign)
            records = Records(((offset, values[offset]),))
            poll = call(late, Kind.POLL, (late, late + 1), ReadCall(offset, 1), records,
                        process=process)  # fmt: skip
            history.operations.append(poll._replace(queue=queue))
            late += 10


def _stale_register(random: Random, history: History) -> None:
    get = call(99_998, Kind.GET, (500, 501), None, Seen("r-1", 1))
    history.operations.append(get._replace(queue=REGISTER))


def _overclaimed(random: Random, history: History) -> None:
    history.notes.append(FaultNote("mode", -100, HistoryDurability.REPLICATED))


PLANTS: tuple[Plant, ...] = (
    _lost, _swapped, _phantom, _of_another_queue, _hole, _stale, _late_append, _skipped,
    _stale_register, _overclaimed,
)  # fmt: skip
RULES = {
    "lost", "divergence", "phantom", "hole", "stale_read", "real_time", "skip", "receipt",
    "duplicate",
}  # fmt: skip


def partitioned(directory: Path, notes: list[FaultNote], size_bytes: int) -> Counter[object]:
    """The same as Spark does it, without Spark: read in parts, then queue by queue."""
    files = [str(directory / name) for name in ("history.jsonl", "drains.jsonl")]
    parts = [
        HistoryPart(number, lo, lo + size_bytes)
        for number, path in enumerate(files)
        for lo in range(0, Path(path).stat().st_size, size_bytes)
    ]
    order = list(range(len(parts)))
    Random(1).shuffle(order)
    wanted = pa.RecordBatch.from_pydict({"id": order})
    lines = pa.Table.from_batches(read_parts(files, parts, iter([wanted])))
    counts: Counter[object] = Counter()
    for queue in lines.column("queue").unique().to_pylist():
        rows = check_queue(notes, lines.filter(pa.compute.equal(lines["queue"], queue)))
        for row in rows.to_pylist():
            if row["rule"] is not None:
                counts[row["rule"], row["queue"], row["detail"]] += 1
    return counts


def test_planted_violations_are_all_found_and_the_same(tmp_path: Path) -> None:
    rules = set()
    for seed in range(4):
        for plant in PLANTS:
            random = Random(seed)
            history = History(random)
            plant(random, history)
            expected = history.expected()
            directory = history.save(tmp_path / f"{plant.__name__}-{seed}")
            assert expected, f"seed {seed}: {plant.__name__} planted nothing"
            assert partitioned(directory, history.notes, 3000) == expected, (seed, plant)
            rules |= {rule for rule, _, _ in expected}
    assert rules >= RULES


def test_clean_histories_are_not_reported(tmp_path: Path) -> None:
    for seed in range(10):
        history = History(Random(seed))
        directory = history.save(tmp_path / f"{seed}")
        assert partitioned(directory, [], 2000) == Counter()


def test_a_drain_of_many_lines_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "DRAIN_VALUES_MAX", 7)
    whole = Drain(1, "q", 5, [f"v{n}" if n % 9 else None for n in range(40)])
    lines = list(history.drain_to_json(whole))
    assert len(lines) == 6
    parts = [history.drain_from_json(line) for line in lines]
    Random(2).shuffle(parts)
    assert whole_drains(parts) == [whole]
    assert whole_drains([*parts, *(part._replace(replica=2) for part in parts)]) == [whole]
    lacking = [part for part in parts if part.first_offset != 12]
    assert whole_drains(lacking)[0].values[7:14] == [None] * 7


@pytest.mark.long
def test_spark_finds_what_is_planted_in_several_histories(
    spark: SparkSession, tmp_path: Path
) -> None:
    random = Random(7)
    planted = History(random, 200)
    _lost(random, planted)
    _stale(random, planted)
    expected = planted.expected()
    directory = planted.save(tmp_path / "a")

    checked = history_check(spark, [str(directory)], piece_size_bytes=100_000)

    named = Counter((one.rule, one.queue, one.detail) for one in checked.violations)
    assert named == expected
    assert checked.violation_count == expected.total()
    assert sum(checked.operation_counts.values()) == len(planted.operations)
    assert set(checked.operation_counts) == {*QUEUES, REGISTER}
    stale = next(one for one in checked.violations if one.rule == "stale_read")
    assert history.from_json(stale.witnesses[-1]) in planted.operations


def test_a_wrong_directory_is_found_before_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "history.jsonl")
    monkeypatch.setattr("pipeline.session.start", lambda *_: pytest.fail("Spark started"))
    result = CliRunner().invoke(main, ["pipeline", "history-check", str(tmp_path)])
    assert "there is no such file" in result.stderr


def test_a_history_that_cannot_be_read_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"history.jsonl byte 0: there is no such file"):
        history_check(spark, [str(tmp_path)])
    (tmp_path / "history.jsonl").write_text("{}\n")
    with pytest.raises(Exception, match=r"history.jsonl byte 0: not a line of a history"):
        history_check(spark, [str(tmp_path)])
