"""The end of a connection to another node, on which many clients wait."""

import asyncio
from unittest.mock import Mock

from node.rocketmq.remoting.channel import BrokenError, RemotingChannel
from node.rocketmq.remoting.protocol.command import Command


async def test_commands_of_a_broken_connection_fail_some_in_a_turn_of_the_loop() -> None:
    channel = RemotingChannel(Mock(), is_between_nodes=True)
    channel.connection_made(Mock())
    futures = [channel.ask(Command(1), 60.0) for _ in range(200)]
    channel.connection_lost(None)
    most, done = 0, 0
    while done < len(futures):
        now = sum(one.done() for one in futures)
        assert all(one.done() for one in futures[:now]), "in their order"
        most, done = max(most, now - done), now
        await asyncio.sleep(0)
    assert most == 64
    assert all(isinstance(one.exception(), BrokenError) for one in futures)
    assert not channel._waiting
