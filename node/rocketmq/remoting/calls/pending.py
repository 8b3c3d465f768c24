"""Sends under way, and the answer that each becomes.

Owns the answer of a send: message ids, queue and offset as the broker name shows them.
"""

import asyncio
from typing import NamedTuple

from node.rocketmq.remoting.protocol.answers import Answer
from quorumlog.pb.log_pb2 import AppendResponse
from store.format import Host
from store.record.message import encode_host


class Pending(NamedTuple):
    """A send under way, or done."""

    future: "asyncio.Future[AppendResponse]"
    queue_id: int
    """As the broker name shows it."""
    key: str
    sizes: list[int]
    """Sizes of the records in bytes."""
    host: Host
    """This node, for message ids."""

    def current_answer(self) -> Answer:
        """Return the answer of a send that is done. Raises what it failed with."""
        return self.answer(self.future.result())

    def answer(self, receipt: AppendResponse) -> Answer:
        """Return the answer of a batch that is as durable as the cluster promises."""
        # As `message_id` of each position.
        host, ids, position = encode_host(self.host).hex().upper(), [], receipt.position
        for number, size_bytes in enumerate(self.sizes):
            if receipt.positions:
                position = receipt.positions[number]
            ids.append(f"{host}{position:016X}")
            position += size_bytes
        offset = receipt.queues[0].first_offset if receipt.queues else 0
        return Answer(
            ext={
                "msgId": ",".join(ids),
                "queueId": str(self.queue_id),
                "queueOffset": str(offset),
                "transactionId": self.key,
                "MSG_REGION": "DefaultRegion",
                "TRACE_ON": "true",
            }
        )
