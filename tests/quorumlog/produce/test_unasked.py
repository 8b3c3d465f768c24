"""No failure that nobody asked about is dropped silently, and no message that waits."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from itertools import permutations
from typing import Any

import pytest

import quorumlog
from quorumlog import errors, sync
from quorumlog.cluster.retry import Deadline
from quorumlog.produce import unasked
from quorumlog.produce.delivery import Batch, Delivery
from quorumlog.produce.outgoing_messages import entry_of
from quorumlog.produce.unasked import KEPT_COUNT_MAX, Failures
from tests.patience import eventually
from tests.quorumlog.fake_cluster import HANG_AFTER, FakeCluster, connect, fake_cluster, producing

ASKED, LATER, NEVER = "asked before", "asked after", "never asked"


@pytest.mark.parametrize(
    "pattern",
    [
        (ASKED, NEVER),
        (LATER, NEVER),
        (NEVER, ASKED),
        (NEVER, LATER),
        (ASKED, LATER, NEVER),
        (NEVER, NEVER),
        (ASKED, LATER),
    ],
)
async def test_a_failure_that_nobody_asked_about_is_told_whatever_came_before(
    pattern: Sequence[str],
) -> None:
    failures = Failures()
    for number, when in enumerate(pattern):
        count = 1 if number == len(pattern) - 1 else KEPT_COUNT_MAX + 1
        later = [_failed(failures, when) for _ in range(count)]
        for delivery in later if when == LATER else ():
            with pytest.raises(errors.UnknownTopicError):
                delivery.result()
    assert _is_told(failures) is (NEVER in pattern)
    assert not _is_told(failures)


def _is_told(failures: Failures) -> bool:
    try:
        with failures.flush([]):
            return False
    except errors.UnknownTopicError:
        return True


def _failed(failures: Failures, when: str) -> Delivery:
    batch = Batch(Deadline(1_000), lambda _: None)
    entry = entry_of("none", b"", None, None, None, None, 0, None)
    delivery = batch.add(entry, 100)
    batch.fail(errors.UnknownTopicError("none"))
    if when == ASKED:
        with pytest.raises(errors.UnknownTopicError):
            delivery.result()
    failures.note(batch, failures.next_flush)
    return delivery


@pytest.mark.parametrize("kept_count_max", [0, 1, KEPT_COUNT_MAX])
@pytest.mark.parametrize("is_shared", [False, True])
def test_each_flush_raises_for_its_messages_in_every_order_of_two_tasks(
    monkeypatch: pytest.MonkeyPatch, is_shared: bool, kept_count_max: int
) -> None:
    """A flush raises exactly if one of the messages before it failed, and no flush that was over
    when it began has said so; of two tasks, each with a message and a flush, whether or not there
    is room to keep what failed."""
    monkeypatch.setattr(unasked, "KEPT_COUNT_MAX", kept_count_max)
    tasks, steps = "ab", ("hand", "begin", "end", "fail")
    count = 0
    for order in permutations([(step, task) for task in tasks for step in steps]):
        at = {event: number for number, event in enumerate(order)}
        made = {x: at["hand", x] for x in tasks}
        begun, ended = ({x: at[step, x] for x in tasks} for step in ("begin", "end"))
        failed = {x: at["fail", x] for x in tasks}
        if is_shared:  # One batch, which fails with both messages.
            failed = dict.fromkeys(tasks, min(failed.values()))
        if not all(made[x] < begun[x] < ended[x] and made[x] < failed[x] for x in tasks) or any(
            made[x] < begun[y] and failed[x] > ended[y] for x in tasks for y in tasks
        ):
            continue  # A task does one after the other, and a flush waits for its messages.
        named = dict.fromkeys(tasks, len(order))  # When a flush first had named a message.
        expected = {}
        for flush in sorted(tasks, key=ended.__getitem__):
            new = [x for x in tasks if made[x] < begun[flush] < named[x]]
            expected[flush] = bool(new)
            named |= {x: min(named[x], ended[flush]) for x in new}
        assert _flushed(order, is_shared=is_shared) == expected, order
        count += 1
    assert count > 10


def _flushed(order: Sequence[tuple[str, str]], *, is_shared: bool) -> dict[str, bool]:
    """Return for each task whether its flush raised."""
    failures, raised = Failures(), dict[str, bool]()
    batches, numbers = dict[str, Batch](), dict[Batch, int]()
    flushes = dict[str, AbstractContextManager[None]]()
    for step, task in order:
        if step == "hand":
            batch = next(iter(batches.values())) if is_shared and batches else None
            batch = batch or Batch(Deadline(1_000), lambda _: None)
            batch.add(entry_of("none", b"", None, None, None, None, 0, None), 100)
            batches[task] = batch
            numbers.setdefault(batch, failures.next_flush)
        elif step == "begin":
            flushes[task] = failures.flush([one for one in batches.values() if not one.is_done])
            flushes[task].__enter__()
        elif step == "fail" and not batches[task].is_done:
            batches[task].fail(errors.UnknownTopicError("none"))
            failures.note(batches[task], numbers[batches[task]])
        elif step == "end":
            try:
                flushes[task].__exit__(None, None, None)
                raised[task] = False
            except errors.UnknownTopicError:
                raised[task] = True
    return raised


WAYS: dict[str, Callable[[quorumlog.Producer], Coroutine[Any, Any, object]]] = {
    "send": lambda producer: producer.send("orders", b""),
    "send_batch": lambda producer: producer.send_batch("orders", [b"1", b"2"]),
    "send_nowait": lambda producer: producer.send_nowait("orders", b"").receipt(),
}


@pytest.mark.parametrize("end", ["received", "given up before", "given up in the turn of it"])
@pytest.mark.parametrize("way", WAYS)
async def test_a_failure_is_named_once_and_only_if_no_caller_received_it(
    way: str, end: str
) -> None:
    async with producing(1) as (cluster, producer):
        await producer.send("orders", b"")
        cluster.script.append(HANG_AFTER)
        sending = asyncio.create_task(WAYS[way](producer))
        await eventually(lambda: producer.stats().in_flight_batches == 1)
        if end == "given up before":
            sending.cancel()
            await asyncio.wait([sending])
        producer._fail_all(errors.DeadlineError("late"))
        if end == "given up in the turn of it":
            sending.cancel()
        flushed = asyncio.gather(producer.flush(), return_exceptions=True)
        (outcome,) = await asyncio.gather(sending, return_exceptions=True)
        assert isinstance(outcome, errors.DeadlineError) is (end == "received")
        types = [type(one) for one in await flushed]
        assert types == ([type(None)] if end == "received" else [errors.DeadlineError])
        await producer.close()


@pytest.mark.parametrize("failed", [0, 3])
@pytest.mark.parametrize("waiting", [0, 200])
@pytest.mark.parametrize("is_blocking", [True, False])
async def test_a_program_that_ends_is_told_once_of_what_waits_and_of_what_failed(
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    is_blocking: bool,
    waiting: int,
    failed: int,
) -> None:
    monkeypatch.setattr(unasked, "_watched", {})  # Without the producers of other tests.
    async with fake_cluster() as cluster:
        await asyncio.to_thread(_block if is_blocking else _run, cluster, waiting, failed)
    lines = [one.getMessage() for one in caplog.records if one.name == "quorumlog.producer"]
    assert len(lines) == bool(waiting or failed)
    for count, what in ((waiting, "had no receipt"), (failed, "failed and no caller received")):
        assert (f"{count} messages {what}" in "".join(lines)) is (count > 0)
    assert ("first: node.unknown_topic" in "".join(lines)) is (failed > 0)


def _run(cluster: FakeCluster, waiting: int, failed: int) -> None:
    async def program() -> None:
        client = connect(cluster)
        await client.start()
        producer = client.producer()
        for _ in range(failed):
            producer.send_nowait("none", b"")
        producer._fail_all(errors.UnknownTopicError("node.unknown_topic"))
        for _ in range(waiting):
            producer.send_nowait("orders", b"")

    asyncio.run(program())
    unasked._warn_all()


def _block(cluster: FakeCluster, waiting: int, failed: int) -> None:
    with sync.connect(cluster.bootstrap) as client:
        producer = client.producer(linger_ms=60_000 if waiting else 0)
        for _ in range(failed):
            producer.enqueue("none", b"")
        if waiting and failed:
            producer.send_batch("orders", [b""])  # It closes the open batch, and comes behind it.
        failures = producer._inner._failures
        asyncio.run(eventually(lambda: failures.untold()[0] == failed))
        for _ in range(waiting):
            producer.send_nowait("orders", b"")
        unasked._warn_all()
        producer.abort()
