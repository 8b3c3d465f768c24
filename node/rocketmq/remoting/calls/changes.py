"""Changes that tools ask for: answered once all nodes that can be reached show them.

Owns the wait. A tool of RocketMQ changes something at a broker and reads it at a name server, and
each node is both. A node that does not answer in time holds up nothing.
"""

import asyncio
from contextlib import suppress
from typing import Final

from node.rocketmq.hold import NothingDoneError
from node.rocketmq.remoting.calls.shared import Calls
from node.rocketmq.remoting.conversation import Handler, Request
from node.rocketmq.remoting.protocol.answers import Answer, RefusedError
from node.rocketmq.remoting.protocol.codes import ResponseCode
from node.rocketmq.remoting.protocol.command import Command
from node.rocketmq.remoting.protocol.fields import INT64_MAX, int_of
from node.rocketmq.remoting.protocol.marks import APPLIED
from quorumlog.pb.common_pb2 import CONSISTENCY_LOCAL

WAIT_S: Final = 1.0
_INDEX: Final = "index"


class Changes(Calls):
    """Waits for other nodes, and answers those that wait for this one. One per gateway."""

    def everywhere(self, run: Handler) -> Handler:
        """Make the handler of a change, which `run` makes at the leader: it answers when all nodes
        of this group that are up have applied what this one has."""

        async def handle(request: Request) -> Answer:
            answer = await run(request)
            questions = [
                asyncio.create_task(self._ask(node.address, driver.applied_index))
                for node in cluster.groups()[cluster.own_group]
                if node.node_id != driver.node_id
            ]
            if questions:
                _, late = await asyncio.wait(questions, timeout=WAIT_S)
                for task in late:
                    task.cancel()
            return answer

        driver, cluster = self._context.driver, self._shared.cluster
        return handle

    async def _ask(self, address: str, index: int) -> None:
        with suppress(NothingDoneError, RefusedError):  # It cannot be reached.
            await self._shared.forwarder.tell(address, Command(APPLIED, ext={_INDEX: str(index)}))

    async def take(self, request: Request) -> Answer:
        """Answer another node once this one has applied an entry. Raises RefusedError from a
        client."""
        if not request.connection.is_node:
            text = "only nodes wait for what others have applied"
            raise RefusedError(ResponseCode.NO_PERMISSION, text)
        index = int_of(request.command.ext, _INDEX, hi=INT64_MAX)
        await self._broker.freshness.ensure(CONSISTENCY_LOCAL, index)
        return Answer()
