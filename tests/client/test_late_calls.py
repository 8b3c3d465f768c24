"""A call that ran out of time says whether it may have had an effect."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from quorumlog import calls
from quorumlog.channels import Node
from quorumlog.errors import (
    DeadlineError,
    NotLeaderError,
    Outcome,
    OutcomeUnknownError,
    QuorumlogError,
    UnavailableError,
)
from quorumlog.retry import Deadline
from quorumlog.routing import Router


class _Router:
    """Finds always the same leader."""

    where = ""

    async def leader(self, _deadline: Deadline) -> Node:
        return cast(Node, SimpleNamespace(address="127.0.0.1:1"))

    def on_hint(self, *_: Any) -> None:
        pass

    def leader_failed(self, _address: str) -> None:
        pass


class _FailingCalls(calls.Calls):
    """Its first attempt fails with this, all others since there is no leader."""

    def __init__(self, first: QuorumlogError) -> None:
        super().__init__(cast(Router, _Router()))
        self._first: QuorumlogError | None = first

    async def once(self, *_: Any, **__: Any) -> Any:
        first, self._first = self._first, None
        raise first if first is not None else NotLeaderError("ask another one")


def outcome_of(first: Outcome, *, is_repeatable: bool, is_read: bool = False) -> QuorumlogError:
    """Call until the time is over, and return the error."""

    async def work() -> None:
        failing = _FailingCalls(UnavailableError("the connection broke", outcome=first))
        await failing.leader(
            "pop", "Ack", None, Deadline(50), is_repeatable=is_repeatable, is_read=is_read
        )

    with pytest.raises(QuorumlogError) as late:
        asyncio.run(work())
    return late.value


def test_what_may_be_repeated_may_have_been_applied() -> None:
    late = outcome_of(Outcome.UNKNOWN, is_repeatable=True)
    assert isinstance(late, DeadlineError)
    assert late.outcome is Outcome.UNKNOWN
    assert late.retryable


def test_what_never_arrived_had_no_effect() -> None:
    late = outcome_of(Outcome.NOT_APPLIED, is_repeatable=True)
    assert isinstance(late, DeadlineError)
    assert late.outcome is Outcome.NOT_APPLIED


def test_a_read_has_no_effect() -> None:
    late = outcome_of(Outcome.UNKNOWN, is_repeatable=True, is_read=True)
    assert isinstance(late, DeadlineError)
    assert late.outcome is Outcome.NOT_APPLIED


def test_what_must_not_be_repeated_is_unknown_at_once() -> None:
    late = outcome_of(Outcome.UNKNOWN, is_repeatable=False)
    assert isinstance(late, OutcomeUnknownError)
    assert late.outcome is Outcome.UNKNOWN
