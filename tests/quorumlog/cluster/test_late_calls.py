"""A call that ran out of time, or was given up, says whether it may have had an effect."""

import asyncio
import gc
from types import SimpleNamespace
from typing import Any, cast

import pytest

from quorumlog.cluster import calls
from quorumlog.cluster.channels import NodeChannel
from quorumlog.cluster.full_disks import FullDisks
from quorumlog.cluster.retry import Deadline
from quorumlog.cluster.routes import Router
from quorumlog.errors import (
    ConflictError,
    DeadlineError,
    NotLeaderError,
    Outcome,
    OutcomeUnknownError,
    QuorumlogError,
    UnavailableError,
)


class _Router:
    """Finds always the same leader."""

    where, full_disks = "", FullDisks()

    async def leader(self, _deadline: Deadline) -> NodeChannel:
        return cast(NodeChannel, SimpleNamespace(address="127.0.0.1:1"))

    def on_hint(self, *_: Any) -> None:
        pass

    def leader_failed(self, _address: str) -> None:
        pass


class _FailingCalls(calls.Calls):
    """Its first attempt fails with this, all others in the other way."""

    def __init__(self, first: QuorumlogError, then: QuorumlogError) -> None:
        super().__init__(cast(Router, _Router()))
        self._first: QuorumlogError | None = first
        self._then = then

    async def once(self, *_: Any, **__: Any) -> Any:
        first, self._first = self._first, None
        raise first if first is not None else self._then


async def outcome_of(
    first: Outcome,
    *,
    is_repeatable: bool,
    is_read: bool = False,
    then: QuorumlogError | None = None,
) -> QuorumlogError:
    """Call until the time is over, or until the refusal, and return the error."""
    failing = _FailingCalls(
        UnavailableError("the connection broke", outcome=first),
        then or NotLeaderError("ask another one"),
    )
    how = {"is_repeatable": is_repeatable, "is_read": is_read}
    with pytest.raises(QuorumlogError) as late:
        await failing.leader(None, Deadline(50), **how)
    return late.value


@pytest.mark.parametrize(
    ("first", "is_repeatable", "is_read", "family", "outcome"),
    [
        (Outcome.UNKNOWN, True, False, DeadlineError, Outcome.UNKNOWN),
        (Outcome.NOT_APPLIED, True, False, DeadlineError, Outcome.NOT_APPLIED),
        (Outcome.UNKNOWN, True, True, DeadlineError, Outcome.NOT_APPLIED),
        (Outcome.UNKNOWN, False, False, OutcomeUnknownError, Outcome.UNKNOWN),
    ],
    ids=["a call that may be done", "one that never arrived", "a read", "an unrepeatable one"],
)
async def test_a_late_call_says_whether_it_may_have_been_applied(
    first: Outcome,
    is_repeatable: bool,
    is_read: bool,
    family: type[QuorumlogError],
    outcome: Outcome,
) -> None:
    late = await outcome_of(first, is_repeatable=is_repeatable, is_read=is_read)
    assert type(late) is family
    assert late.outcome is outcome
    assert late.retryable is (family is DeadlineError)


async def test_a_refusal_of_a_repeated_call_says_nothing_about_the_first_one() -> None:
    """The first one may have made what the second one has found."""
    refusal = ConflictError("it is there")
    for first, is_read, expected in (
        (Outcome.UNKNOWN, False, Outcome.UNKNOWN),
        (Outcome.UNKNOWN, True, Outcome.NOT_APPLIED),
        (Outcome.NOT_APPLIED, False, Outcome.NOT_APPLIED),
    ):
        error = await outcome_of(first, is_repeatable=True, is_read=is_read, then=refusal)
        assert isinstance(error, ConflictError)
        assert (error.outcome, error.attempts) == (expected, 2)
    assert refusal.outcome is Outcome.NOT_APPLIED, "others may be told the same"


def test_of_several_calls_a_refusal_is_in_doubt_if_another_one_was_done() -> None:
    refused, unknown = ConflictError("no"), OutcomeUnknownError("who knows")
    for others, expected in (
        ([], Outcome.NOT_APPLIED),
        ([NotLeaderError("no")], Outcome.NOT_APPLIED),
        ([unknown], Outcome.UNKNOWN),
        (["an answer"], Outcome.UNKNOWN),
    ):
        error = calls.beside(refused, [*others, refused])
        assert isinstance(error, ConflictError)
        assert error.outcome is expected


# A call whose node was given up while its answer was on the way.


async def test_an_answer_counts_that_comes_while_others_are_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may say that nothing was applied, which is more than unknown; and it is not left over."""

    question = asyncio.Event()

    class LateCalls(calls.Calls):
        async def once(self, *_: Any, **__: Any) -> Any:
            await question.wait()
            raise UnavailableError("replaced by a newer leader's", outcome=Outcome.NOT_APPLIED)

    async def moved(*_: Any) -> bool:
        question.set()
        await asyncio.sleep(0)
        return True

    monkeypatch.setattr(calls, "SUSPECT_AFTER_MS", 1)
    monkeypatch.setattr(calls, "has_moved", moved)
    late = LateCalls(cast(Router, SimpleNamespace()))
    node = cast(NodeChannel, SimpleNamespace(address="127.0.0.1:1"))
    with pytest.raises(UnavailableError, match="replaced") as refused:
        await late._watched(node, None, Deadline(30_000), 0)
    assert refused.value.outcome is Outcome.NOT_APPLIED


def test_a_call_that_fails_as_its_caller_is_cancelled_leaves_nothing_to_complain_of() -> None:
    troubles: list[dict[str, Any]] = []

    async def work() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, found: troubles.append(found))
        is_down = asyncio.Event()

        class FailingCalls(calls.Calls):
            async def once(self, *_: Any, **__: Any) -> Any:
                await is_down.wait()
                raise UnavailableError("the stream was removed")

        failing = FailingCalls(cast(Router, SimpleNamespace()))
        node = cast(NodeChannel, SimpleNamespace(address="127.0.0.1:1"))
        caller = asyncio.create_task(failing._watched(node, None, Deadline(30_000), 0))
        for _ in range(3):
            await asyncio.sleep(0)
        is_down.set()
        for _ in range(2):  # The call has failed, and its caller does not know yet.
            await asyncio.sleep(0)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller

    asyncio.run(work())
    gc.collect()
    assert troubles == []
