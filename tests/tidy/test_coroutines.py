"""Tests that are coroutines run to their end, and fail as others do."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import cast

import pytest
import uvloop

from tests.calm_loop import CalmLoop
from tests.coroutines import pytest_pyfunc_call


def run(test: Callable[[], Awaitable[None]], loop: str = "calm") -> bool | None:
    item = SimpleNamespace(obj=test, funcargs={"loop": loop})
    return pytest_pyfunc_call(cast(pytest.Function, item))


def test_a_coroutine_that_fails_fails_its_test() -> None:
    async def fails() -> None:
        await asyncio.sleep(0)
        raise KeyError("planted")

    with pytest.raises(KeyError, match="planted"):
        run(fails)


def test_an_error_in_a_callback_fails_its_test() -> None:
    async def complains() -> None:
        asyncio.get_running_loop().call_soon(lambda: 1 // 0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    with pytest.raises(AssertionError, match="exception handler was called"):
        run(complains)


@pytest.mark.parametrize(("loop", "kind"), [("calm", CalmLoop), ("uvloop", uvloop.Loop)])
def test_a_coroutine_runs_on_the_loop_that_it_names_and_its_tasks_end(
    loop: str, kind: type[asyncio.AbstractEventLoop]
) -> None:
    left: list[asyncio.Task[bool]] = []
    seen: list[type] = []

    async def leaves_a_task() -> None:
        seen.append(type(asyncio.get_running_loop()))
        left.append(asyncio.create_task(asyncio.Event().wait()))

    assert run(leaves_a_task, loop)
    assert seen == [kind]
    assert left[0].cancelled()
