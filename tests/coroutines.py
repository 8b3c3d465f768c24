"""Runs tests that are coroutines: `async def test_...`, each on an event loop of its own.

Owns the loop and the limit against hanging; must not know what a test does. As in `asyncio.run`,
what a test leaves running is cancelled at its end; what reaches the loop's exception handler fails
the test, except for gRPC's poller, which may have an event for the loop of an earlier test.
"""

import asyncio
import inspect
from collections.abc import Callable
from typing import Final

import pytest
import uvloop

from tests.calm_loop import CalmLoop

LOOPS: Final[dict[object, Callable[[], asyncio.AbstractEventLoop]]] = {
    "calm": CalmLoop,
    "uvloop": uvloop.new_event_loop,
}
POLLER: Final = "PollerCompletionQueue._handle_events"
TIMEOUT_S: Final = 300.0
"""Limit against hanging, which a slow machine does not reach. Demands on time are in the tests."""


@pytest.fixture(autouse=True)
def loop() -> str:
    """Name the loop that coroutines run on, unless a parameter does."""
    return "calm"


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test if it is a coroutine function; pytest itself runs others."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    given = pyfuncitem.funcargs
    arguments = {name: given[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    troubles: list[str] = []
    with asyncio.Runner(loop_factory=LOOPS[given["loop"]]) as runner:
        runner.get_loop().set_exception_handler(lambda _, context: troubles.append(repr(context)))
        runner.run(asyncio.wait_for(pyfuncitem.obj(**arguments), TIMEOUT_S))
    problems = [trouble for trouble in troubles if POLLER not in trouble]
    assert not problems, f"the loop's exception handler was called: {problems}"
    return True
