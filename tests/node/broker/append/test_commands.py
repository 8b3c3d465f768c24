"""Many commands in one turn: each caller hears the truth about its own."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

from node.config.limits import Limits
from node.errors.common import LimitReachedError, UnknownTopicError
from tests.node.broker_fakes import Fixture, node_at, node_with
from tests.store.records import PAGE


@node_with(filled=10, limits=replace(Limits(), group_count_max=1), file_size_bytes=256 * PAGE)
async def test_every_refused_command_of_a_crowd_is_told(node: Fixture) -> None:
    crowd = [node.commit(f"g{n}", ("orders", 0, 7)) for n in range(3000)]
    outcomes = await asyncio.gather(*crowd, return_exceptions=True)
    assert len(node.machine.state.groups) == 1
    refused = [one for one in outcomes if isinstance(one, LimitReachedError)]
    assert len(refused) == len(outcomes) - 1


@node_with(filled=10, file_size_bytes=256 * PAGE)
async def test_commits_that_meet_the_deletion_of_their_topic_are_not_acked(node: Fixture) -> None:
    first = asyncio.ensure_future(node.delete_topic("orders"))
    await asyncio.sleep(0)
    crowd = [node.commit(f"g{n}", ("orders", 0, 7)) for n in range(2000)]
    outcomes = await asyncio.gather(*crowd, return_exceptions=True)
    await first
    assert not node.machine.state.groups
    assert {type(one) for one in outcomes} == {UnknownTopicError}


async def test_commands_of_one_turn_fit_into_small_batches(tmp_path: Path) -> None:
    limit = 4096  # The smallest that the settings allow.
    config: dict[str, Any] = {"batch_size_bytes_max": limit, "body_size_bytes_max": limit}
    async with node_at(tmp_path, filled=10, **config) as node:
        await asyncio.gather(*(node.commit(f"group-{n}", ("orders", 0, 7)) for n in range(100)))
        assert len(node.machine.state.groups) == 100
