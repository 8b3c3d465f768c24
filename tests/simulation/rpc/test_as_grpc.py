"""The simulated gRPC does what the real one does: one scenario over both has one outcome."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from grpc._cython import cygrpc
from grpc.aio import _channel, _utils

from simulation.rpc.substitute import rpc_parts
from simulation.world import World
from tests.simulation.rpc import scenarios

LIMIT_S = 60


def in_a_world(scenario: Callable[[], Awaitable[Any]]) -> Any:
    """Run a scenario as a process of a world, and return its result."""
    found: list[Any] = []

    async def live() -> int:
        found.append(await scenario())
        return 0

    with World(1) as world, rpc_parts(world):
        process = world.add_machine().run("both", live)
        assert world.run_until(lambda: not process.is_alive, LIMIT_S), "it hangs"
        if process.error is not None:
            raise process.error
    return found[0]


def with_real_grpc(scenario: Callable[[], Awaitable[Any]]) -> Any:
    """Run a scenario over loopback, and return its result."""

    async def real() -> Any:
        return await asyncio.wait_for(scenario(), LIMIT_S)

    return asyncio.run(real())


@pytest.mark.parametrize("scenario", scenarios.ALL, ids=lambda one: one.__name__)
def test_outcomes_are_those_of_real_grpc(scenario: Callable[[], Awaitable[Any]]) -> None:
    assert in_a_world(scenario) == with_real_grpc(scenario)


@pytest.mark.long
@pytest.mark.parametrize(
    ("scenario", "outcomes"), scenarios.RACES, ids=[one.__name__ for one, _ in scenarios.RACES]
)
def test_outcomes_of_a_race_are_among_those_of_real_grpc(
    scenario: Callable[[], Awaitable[Any]], outcomes: list[Any]
) -> None:
    assert with_real_grpc(scenario) in outcomes
    assert in_a_world(scenario) in outcomes


def test_all_is_as_before_after_a_world() -> None:
    before = (cygrpc.AioChannel, cygrpc.AioServer, _utils.time, _channel.weakref)
    in_a_world(scenarios.answers)
    assert (cygrpc.AioChannel, cygrpc.AioServer, _utils.time, _channel.weakref) == before
