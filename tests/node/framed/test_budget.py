"""The hot path in interpreter calls, C functions included: a number that no noise blurs."""

import asyncio
import cProfile
import pstats
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quorumlog.pb.log_pb2 import AppendRequest, AppendResponse
from tests.node.framed.servers import append, put, served

APPEND_COUNT = 200
BUDGET_IN = 14
"""From the bytes of one append to `append_nowait`; 12 when this was written."""
BUDGET_OUT = 10
"""From the resolved future to the transport; 8 when this was written."""
RECEIPT = AppendResponse(term=1, index=2, position=3, record_count=1)


class Pending:
    """An append's future whose callback the test calls itself."""

    callback: Callable[[Any], None]

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self.callback = callback

    def result(self) -> AppendResponse:
        return RECEIPT

    def cancel(self) -> None:
        raise AssertionError("the client does not go")


def counted(profile: cProfile.Profile) -> dict[str, int]:
    """Return the calls of each function."""
    stats: Any = pstats.Stats(profile)
    return {f"{file}:{name}": found[1] for (file, _, name), found in stats.stats.items()}


@pytest.mark.parametrize("loop", ["uvloop"])
async def test_an_append_costs_few_interpreter_calls(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        client = await it.client()
        await put(client, 0, 0, 1)
        (connection,) = it.server.connections.all
        pending: list[Pending] = []

        def append_nowait(_request: AppendRequest, _records: bytes, _caller: object) -> Any:
            pending.append(Pending())
            return pending[-1]

        it.server.calls.append_nowait = append_nowait
        data = append(1, 0, 1)
        inward, outward = cProfile.Profile(), cProfile.Profile()
        for _ in range(APPEND_COUNT):
            connection.get_buffer(-1)[: len(data)] = data
            inward.enable()
            connection.get_buffer(-1)
            connection.buffer_updated(len(data))
            inward.disable()
            outward.enable()
            pending[-1].callback(pending[-1])
            outward.disable()
            await asyncio.sleep(0)
            assert (await client.read()).append() == RECEIPT
    for profile, budget in ((inward, BUDGET_IN), (outward, BUDGET_OUT)):
        calls = counted(profile)
        of_test = [name for name in calls if "Profiler" in name or "append_nowait" in name]
        total = sum(calls.values()) - sum(calls[name] for name in of_test)
        assert total <= budget * APPEND_COUNT, calls
