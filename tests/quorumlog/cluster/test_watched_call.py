"""A call whose node was given up while its answer was on the way."""

import asyncio
import gc
from types import SimpleNamespace
from typing import Any, cast

import pytest

from quorumlog.cluster import calls
from quorumlog.cluster.channels import NodeChannel
from quorumlog.cluster.retry import Deadline
from quorumlog.cluster.routes import Router
from quorumlog.errors import Outcome, UnavailableError


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
