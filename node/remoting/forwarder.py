"""Has the leader answer: this node if it leads, else the command travels on as it came.

Owns how long a command is held while no node leads, and the connections to other nodes. Must not
know what a command means. Clients give a call up after 3 s and then try another broker name, so a
command is held for longer than an election takes. One that reached a leader and has no answer may
have been carried out: it is forwarded again only if that changes nothing.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

from node.remoting.channel import BrokenError, NotConnectedError, RemotingChannel
from node.remoting.conversation import Request
from node.remoting.places import Places
from node.remoting.protocol.answers import Answer, RefusedError
from node.remoting.protocol.codes import ResponseCode
from node.remoting.protocol.command import Command
from node.rocketmq.cluster import GatewayCluster
from node.rocketmq.forwarder import HOLD_S, LED_ELSEWHERE

FORWARDED: Final = "__QL_FORWARDED"
"""Ext field of a forwarded command: the address of the client. Such a command is not forwarded
again, and ends with `LED_ELSEWHERE_EXT` where this node does not lead."""
NAME: Final = "__QL_NAME"
"""Ext field of a forwarded command: number of the broker name that the client meant."""
LED_ELSEWHERE_EXT: Final = "__QL_LED_ELSEWHERE"
ADDED: Final = frozenset({FORWARDED, NAME})
"""Ext fields that a client did not sign."""
_AGAIN_S: Final = 0.02
_ANSWER_S: Final = 30.0
"""Time for a leader's answer, the longest wait of a pop and some; clients give up earlier."""


class Forwarder:
    """Has the leader of this node's group answer. One per gateway."""

    def __init__(
        self, cluster: GatewayCluster, places: Places, context: ssl.SSLContext | None
    ) -> None:
        """`context` is for connections to nodes whose ports have TLS."""
        self._cluster = cluster
        self._places = places
        self._context = context
        self._channels: dict[str, RemotingChannel] = {}
        self.forwarded_total = 0

    def leads_here(self) -> bool:
        """Whether this node is the leader, as far as it knows."""
        leader = self._cluster.leader_of(self._cluster.own_group)
        return leader is not None and leader.is_here

    async def answer(
        self,
        request: Request,
        number: int,
        here: Callable[[], Awaitable[Answer]],
        *,
        is_repeatable: bool,
    ) -> Answer:
        """Return the leader's answer. `number` is that of the broker name which is meant.

        Raises the errors of `here`, and RefusedError when there is no leader in time.
        """
        loop, command = asyncio.get_running_loop(), request.command
        was_forwarded = FORWARDED in command.ext
        until_s, why = loop.time() + HOLD_S, "no leader is known"
        while True:
            leader = self._cluster.leader_of(self._cluster.own_group)
            if leader is not None and leader.is_here:
                try:
                    return await here()
                except LED_ELSEWHERE as error:
                    if loop.time() >= until_s:
                        raise
                    why = str(error)
            elif was_forwarded:
                return Answer(ResponseCode.SERVICE_NOT_AVAILABLE, {LED_ELSEWHERE_EXT: "true"})
            elif leader is not None:
                try:
                    answered = await self._ask(request, leader.address, number)
                    if LED_ELSEWHERE_EXT not in answered.ext:
                        return Answer(answered.code, answered.ext, answered.body, answered.remark)
                    why = f"{leader.address} does not lead any more"
                except NotConnectedError as error:
                    why = str(error)
                except BrokenError as error:
                    why = f"{leader.address} got it and did not answer: {error}"
                    if not is_repeatable:
                        text = f"{why}; whether it was done is not known"
                        raise RefusedError(ResponseCode.SERVICE_NOT_AVAILABLE, text) from error
            if loop.time() >= until_s:
                text = f"the group has no leader that answers at the moment ({why}); try again"
                raise RefusedError(ResponseCode.SERVICE_NOT_AVAILABLE, text)
            await asyncio.sleep(_AGAIN_S)

    async def _ask(self, request: Request, node_address: str, number: int) -> Command:
        """Forward a command to a node. Raises NotConnectedError, BrokenError."""
        address = self._places.address_of(node_address, number)
        if not address:
            raise NotConnectedError(f"{node_address} has not told where it speaks remoting")
        channel = self._channels.get(address)
        if channel is None:
            host, _, port = address.rpartition(":")
            made = await RemotingChannel.connect(
                host.removeprefix("[").removesuffix("]"), int(port), self._context, self._on_end
            )
            channel = self._channels.setdefault(address, made)
            if channel is not made:  # Another call was faster.
                made.close()
        self.forwarded_total += 1
        ext = {**request.command.ext, FORWARDED: request.connection.remote, NAME: str(number)}
        return await channel.ask(replace(request.command, ext=ext, flag=0), _ANSWER_S)

    def _on_end(self, channel: RemotingChannel) -> None:
        for address, known in list(self._channels.items()):
            if known is channel:
                del self._channels[address]

    async def stop(self) -> None:
        """Close all connections."""
        for channel in list(self._channels.values()):
            channel.close()
