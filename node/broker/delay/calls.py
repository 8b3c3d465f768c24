"""Delayed messages as services see them: append, cancel, status.

Owns what a request must look like and the answers; `admission` and `delivery_task` do the work.
"""

from typing import Final

from node.broker.append.own_appends import OwnAppends
from node.broker.append.produce import Produce
from node.broker.core.context import Context
from node.broker.delay.admission import DelayAdmission
from node.broker.delay.delivery_task import DeliveryTask
from node.broker.delay.due_index import Due
from node.broker.read.visibility import queued_by_id, record_of
from node.broker.records.delayed import held, level_delay_ms
from node.errors.common import MessageNotFoundError
from node.errors.delay import DelayedGoneError
from node.state.held import HOLDERS, NUMBERS, held_counts
from node.state.tables.delay import DelayTable
from quorumlog.pb.delay_pb2 import (
    CancelDelayedRequest,
    CancelDelayedResponse,
    DelayQueue,
    DelayStatusRequest,
    DelayStatusResponse,
)


class Delay:
    """The calls about delayed messages. One per broker."""

    def __init__(self, context: Context, produce: Produce, own_appends: OwnAppends) -> None:
        self._context: Final = context
        self.delivery_task: Final = DeliveryTask(context, own_appends)
        """The leader's work."""
        self.append: Final = DelayAdmission(context, produce).append

    async def cancel_delayed(self, request: CancelDelayedRequest) -> CancelDelayedResponse:
        """Cancel a held message: after the return it is never delivered. May be repeated.

        Raises MessageNotFoundError (no such message, or none that was delayed), DelayedGoneError
        (delivered, or just being delivered), and the errors of `OwnAppends.write`.
        """
        context = self._context
        context.check_cluster(request.cluster_id)
        context.check_leads()
        message = queued_by_id(context, request.message_id)
        queue = NUMBERS.get((message.topic.encode(), message.queue_id))
        if queue is None:
            raise MessageNotFoundError(request.message_id)
        own = held(record_of(context, message))
        due = Due(own.due_unix_ms, queue, message.queue_offset)
        table = context.state.table(DelayTable)
        if not table.was_cancelled(queue, due.offset):
            if due.offset in table.queues[queue]:
                raise DelayedGoneError(queue, due.offset)
            await self.delivery_task.cancel(due)
        return CancelDelayedResponse(**own._asdict())

    async def delay_status(self, _request: DelayStatusRequest) -> DelayStatusResponse:
        """Return how many messages are held, in which queues, and when the next one is due."""
        context, limits = self._context, self._context.limits
        context.check_leads()
        table, leadership = context.state.table(DelayTable), self.delivery_task.leadership
        next_due_ms = None if leadership is None else leadership.index.next_due_unix_ms()
        counts = held_counts(context.store, context.state)
        response = DelayStatusResponse(
            held_count=sum(counts),
            held_count_max=limits.delayed_count_max,
            horizon_ms=limits.delay_ms_max,
            next_due_unix_ms=next_due_ms or 0,
            now_unix_ms=self._context.unix_ms(),
            undeliverable_count=table.undeliverable_count,
            is_loading=leadership is None or leadership.is_loading,
        )
        for queue, (topic, queue_id) in enumerate(HOLDERS):
            max_offset = context.store.queue_range(topic, queue_id)[1]
            if max_offset:
                row = DelayQueue(
                    level=queue,
                    delay_ms=level_delay_ms(queue) if queue else 0,
                    held_count=counts[queue],
                    floor_offset=table.queues[queue].floor,
                    max_offset=max_offset,
                )
                response.queues.append(row)
        return response
