"""Gives messages back: to be delivered to the group again later, or as dead letters.

Owns the calls of one consumer to one broker group, one call at a time, so that the node recognises
a repetition; must not know what is consumed. A failed call ends the numbering, since the node may
have applied one of its attempts. The next call starts again under a new id.
"""

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from quorumlog.cluster.broker_groups import BrokerGroup
from quorumlog.cluster.retry import Deadline
from quorumlog.errors import Outcome, UnknownProducerError
from quorumlog.pb import consumer_pb2, retry_pb2
from quorumlog.records.message import Message


@dataclass(frozen=True, slots=True)
class Redelivery:
    """Result of giving messages back."""

    retried_count: int
    dead_count: int
    """Count of messages that became dead letters: tried too often, or rejected."""


class Redeliveries:
    """The calls of one consumer to one broker group."""

    def __init__(self, group: BrokerGroup, consumer_group: str) -> None:
        self._group = group
        self._consumer_group = consumer_group
        self._turn = asyncio.Lock()
        self._begin()

    def _begin(self) -> None:
        self._producer_id, self._sequence = secrets.randbits(64) | 1, 0

    async def give_back(
        self,
        messages: Sequence[Message],
        *,
        delay_ms: int,
        is_dead: bool,
        attempt_count_max: int,
        offsets: Sequence[consumer_pb2.GroupOffset],
        deadline: Deadline,
    ) -> Redelivery:
        """Move messages and store offsets, in one step. Raises the error of the cluster."""
        request = retry_pb2.RetryLaterRequest(
            group=self._consumer_group,
            attempt_count_max=attempt_count_max,
            cluster_id=self._group.router.cluster_id,
            offsets=offsets,
        )
        for message in messages:
            request.messages.add(
                topic=message.topic,
                queue_id=message.queue_id,
                offset=message.queue_offset,
                delay_ms=delay_ms,
                is_dead=is_dead,
            )
        async with self._turn:
            try:
                response = await self._call(request, deadline)
            except UnknownProducerError as error:
                if error.outcome is not Outcome.NOT_APPLIED:
                    raise
                # The cluster has forgotten the id after a long silence; the call had no effect.
                response = await self._call(request, deadline)
        return Redelivery(response.retried_count, response.dead_count)

    async def _call(
        self, request: retry_pb2.RetryLaterRequest, deadline: Deadline
    ) -> retry_pb2.RetryLaterResponse:
        request.producer_id, request.sequence = self._producer_id, self._sequence
        try:
            response: retry_pb2.RetryLaterResponse = await self._group.calls.leader(
                request, deadline
            )
        except BaseException:  # Cancelled, too.
            self._begin()
            raise
        self._sequence += 1
        return response
