"""Has the leader answer: this node if it leads, else the command travels on as it came.

Owns the connections to other nodes; what is on the way there is charged to its client, since all
clients of a node share them. Must not know what a command means. One that reached a leader and has
no answer may have been carried out: it is forwarded again only if that changes nothing.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

from node.errors.common import BusyError
from node.rocketmq.cluster import GatewayCluster
from node.rocketmq.hold import LED_ELSEWHERE, NothingDoneError, answer_of_leader
from node.rocketmq.protocol.statuses import CallRefusedError
from node.rocketmq.remoting.access import ACCESS_KEY
from node.rocketmq.remoting.channel import BrokenError, NotConnectedError, RemotingChannel
from node.rocketmq.remoting.conversation import Request
from node.rocketmq.remoting.places import Places
from node.rocketmq.remoting.protocol import marks
from node.rocketmq.remoting.protocol.answers import Answer, InvalidError, RefusedError
from node.rocketmq.remoting.protocol.codes import RequestCode, ResponseCode
from node.rocketmq.remoting.protocol.command import Command
from node.rocketmq.remoting.protocol.marks import FORWARDED, NAME, USER
from node.runtime.accounts import Kind
from node.users.node_proofs import NodeProofs

_ANSWER_S: Final = 30.0
"""Time for a leader's answer, the longest wait of a pop and some; clients give up earlier."""
_TOLD_S: Final = 2.0
"""Time for the answer to what this node tells of itself."""
_QUESTIONS: Final = frozenset(
    code for code in RequestCode if code.name.startswith(("GET_", "QUERY_", "SEARCH_", "VIEW_"))
)
"""Codes of commands that change nothing: without their clients they are given up."""
ANSWER_LED_ELSEWHERE: Final = Answer(
    ResponseCode.SERVICE_NOT_AVAILABLE, {marks.LED_ELSEWHERE: "true"}
)
"""To a forwarded command: it changed nothing."""


class Forwarded(NamedTuple):
    """A command that went to a node."""

    node_address: str
    asked: "asyncio.Future[Command]"

    def answer(self, *, is_repeatable: bool) -> Answer:
        """Return the answer, which is there. Raises RefusedError, NothingDoneError."""
        try:
            answered = self.asked.result()
        except NotConnectedError as error:
            raise NothingDoneError(_unavailable(f"{self.node_address}: {error}")) from error
        except BrokenError as error:
            why = f"{self.node_address} got it and did not answer: {error}; whether it was done "
            refusal = _unavailable(f"{why}is not known")
            if is_repeatable:
                raise NothingDoneError(refusal) from error
            raise refusal from error
        if marks.LED_ELSEWHERE in answered.ext:
            text = f"{self.node_address} does not lead any more; try again"
            raise NothingDoneError(_unavailable(text))
        return Answer(answered.code, answered.ext, answered.body, answered.remark)


class Forwarder:
    """Has the leader of this node's group answer. One per gateway."""

    def __init__(
        self,
        cluster: GatewayCluster,
        places: Places,
        context: ssl.SSLContext | None,
        proofs: NodeProofs,
    ) -> None:
        """`context` is for connections to nodes whose ports have TLS; `proofs` proves to a node
        that this is one, too."""
        self._cluster = cluster
        self._places = places
        self.context = context
        """Of the connections to come."""
        self._proofs = proofs
        self._channels: dict[str, RemotingChannel] = {}
        self.forwarded_total = 0

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
        if FORWARDED in request.command.ext:
            if not self._cluster.leads_here():
                return ANSWER_LED_ELSEWHERE  # The node that forwarded it tries again.
            try:
                return await here()
            except LED_ELSEWHERE:
                return ANSWER_LED_ELSEWHERE
        there = partial(self._forward, request, number, is_repeatable=is_repeatable)
        try:
            return await answer_of_leader(self._cluster, self._cluster.own_group, here, there)
        except CallRefusedError as error:
            raise _unavailable(error.message) from error

    def begin(self, request: Request, number: int) -> "Forwarded | None":
        """Forward a command at once if a connection to the leader is open, else return None."""
        leader = self._cluster.own_leader()
        if leader is None or leader.is_here or FORWARDED in request.command.ext:
            return None
        channel = self._channels.get(self._places.address_of(leader.address, number))
        if channel is None:
            return None
        try:
            return Forwarded(leader.address, self._ask(channel, request, number)[0])
        except NothingDoneError:
            return None  # There is no room: the call is held.

    async def _forward(
        self, request: Request, number: int, node_address: str, *, is_repeatable: bool
    ) -> Answer:
        try:
            channel = await self._channel(node_address, number)
            answer, opaque = self._ask(channel, request, number)
        except NotConnectedError as error:
            raise NothingDoneError(_unavailable(f"{error}; try again")) from error
        try:
            with suppress(BrokenError, NotConnectedError):  # `answer` says what it means.
                # Not cancelled with its caller: what changes something goes on at the leader.
                await asyncio.shield(answer)
        except asyncio.CancelledError:
            if request.command.code in _QUESTIONS:
                channel.withdraw(answer, opaque)
            raise
        return Forwarded(node_address, answer).answer(is_repeatable=is_repeatable)

    async def tell(self, node_address: str, command: Command) -> Command:
        """Return the answer of the node at an address to a command of this node. Raises
        RefusedError, NothingDoneError."""
        try:
            channel = await self._channel(node_address, 0)
            answer = await channel.ask(command, _TOLD_S)
        except (NotConnectedError, BrokenError, ValueError) as error:  # The last one: too large.
            raise NothingDoneError(_unavailable(f"{node_address}: {error}")) from error
        if marks.LED_ELSEWHERE in answer.ext:
            raise NothingDoneError(_unavailable(f"{node_address} does not lead any more"))
        return answer

    async def _channel(self, node_address: str, number: int) -> RemotingChannel:
        address = self._places.address_of(node_address, number)
        if not address:
            raise NotConnectedError(f"{node_address} has not told where it speaks remoting")
        channel = self._channels.get(address)
        if channel is None:
            token = self._proofs.token_of(self._cluster.node_at(node_address))
            if not token:
                raise NotConnectedError(f"{node_address} has not told this node its token")
            host, _, port = address.rpartition(":")
            made = await RemotingChannel.connect(
                host.removeprefix("[").removesuffix("]"),
                int(port),
                self.context,
                self._on_end,
                partial(self._proofs.answer, token),
            )
            channel = self._channels.setdefault(address, made)
            if channel is not made:  # Another call was faster.
                made.close()
        return channel

    def _ask(
        self, channel: RemotingChannel, request: Request, number: int
    ) -> "tuple[asyncio.Future[Command], int]":
        """Forward a command; return the future of its answer and its number.

        Raises NotConnectedError, NothingDoneError without room for it, and RefusedError if it has
        no form for the leader."""
        command = request.command
        ext = {**command.ext, FORWARDED: request.caller, NAME: str(number)}
        if request.user is not None and request.user.name and ACCESS_KEY not in ext:
            ext[USER] = request.user.name
        forwarded = Command(
            command.code,
            ext=ext,
            body=command.body,
            version=command.version,
            language=command.language,
        )
        size_bytes = len(command.body) + sum(map(len, command.ext.values()))
        try:
            charge = request.account.charge(Kind.FORWARDED, size_bytes)
        except BusyError as error:
            raise NothingDoneError(error) from error
        try:
            answer = channel.ask(forwarded, _ANSWER_S)
        except BaseException as error:
            charge.release()
            if isinstance(error, ValueError):
                text = f"the command cannot be forwarded to the leader: {error}; send less at once"
                raise InvalidError(text) from error
            raise
        answer.add_done_callback(lambda _: charge.release())
        self.forwarded_total += 1
        return answer, forwarded.opaque

    def _on_end(self, channel: RemotingChannel) -> None:
        for address, known in list(self._channels.items()):
            if known is channel:
                del self._channels[address]

    async def stop(self) -> None:
        """Close all connections."""
        for channel in list(self._channels.values()):
            channel.close()


def _unavailable(text: str) -> RefusedError:
    return RefusedError(ResponseCode.SERVICE_NOT_AVAILABLE, text)
