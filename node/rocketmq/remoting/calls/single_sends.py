"""Single messages that clients send at the same time, appended as one batch.

Owns which messages are joined: those that arrive while others are under way. They wait for these,
so an idle node appends at once and a busy one appends few entries. An entry of the log costs the
leader and each follower more than one more record in it. Only messages that no check of a batch
refuses are joined, and one that is refused for another's sake after all is appended alone, so no
message fails because of another one.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

from node.broker import Broker
from node.broker.append.produce import Alone
from node.broker.core.context import noted
from node.errors.common import AppendTimeoutError
from quorumlog.pb.common_pb2 import QueueRange
from quorumlog.pb.log_pb2 import AppendRequest, AppendResponse
from store.record.encoder import OwnRecords

RECORD_SIZE_BYTES_MAX: Final = 16 << 10
"""Size of the largest record that is joined: a larger one costs more than its entry."""
WAIT_S: Final = 0.002
"""Longest wait of a record: a batch that is undecided for longer holds no other one up."""
COUNT_MAX: Final = 128
"""Records of a joined batch; with the largest ones 2 MiB."""

Receipt = asyncio.Future[AppendResponse]


class _Single(NamedTuple):
    topic: str
    queue_id: int
    record: OwnRecords
    receipt: Receipt


class SingleSends:
    """Appends single records, those that wait together. One per gateway."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._loop = asyncio.get_running_loop()
        self._waiting: list[_Single] = []
        """Records that wait, in the order in which they came."""
        self._timer: asyncio.TimerHandle | None = None
        self._batch_count = 0
        """Batches under way."""

    def append(self, topic: str, queue_id: int, record: OwnRecords) -> Receipt:
        """Append a record of the usual form; return the future of its receipt.

        The receipt of a joined record has its position and its queue offset, and no more.
        """
        if not self._waiting and not self._batch_count:
            return self._append(1, record)
        if not self._waiting:
            self._timer = self._loop.call_later(WAIT_S, self.flush)
        receipt: Receipt = self._loop.create_future()
        self._waiting.append(_Single(topic, queue_id, record, receipt))
        if len(self._waiting) == COUNT_MAX:
            self.flush()
        return receipt

    def flush(self) -> None:
        """Append the records that wait."""
        singles, self._waiting = self._waiting, []
        if not singles:
            return
        if self._timer is not None:
            self._timer.cancel()
        records = OwnRecords(b"".join([single.record for single in singles]))
        alone = [Alone(single.record, single.receipt) for single in singles]
        appended = self._append(len(singles), records, alone if len(singles) > 1 else ())
        appended.add_done_callback(partial(self._settle, singles))

    def _append(self, count: int, records: OwnRecords, alone: Sequence[Alone] = ()) -> Receipt:
        request = AppendRequest(record_count=count)
        appended = self._broker.produce.append(request, records=records, alone=alone)
        self._batch_count += 1
        appended.add_done_callback(self._on_done)
        return appended

    def _on_done(self, _: Receipt) -> None:
        self._batch_count -= 1
        if not self._batch_count:
            self.flush()

    def _settle(self, singles: list[_Single], appended: Receipt) -> None:
        """Complete the receipts of a joined batch."""
        if appended.cancelled():
            return  # Refused for one of them: each is appended alone, and answered for itself.
        error = appended.exception()
        if error is None:
            self._share(singles, appended.result())
        elif isinstance(error, AppendTimeoutError) and error.decided is not None:
            error.decided.add_done_callback(partial(self._settle, self._late(singles, error)))
        else:
            for single in singles:
                if not single.receipt.done():
                    single.receipt.set_exception(error)

    def _late(self, singles: list[_Single], error: AppendTimeoutError) -> list[_Single]:
        """Fail receipts whose time is over; return the records with those of their decision."""
        late = [single._replace(receipt=self._loop.create_future()) for single in singles]
        for single, later in zip(singles, late, strict=True):
            later.receipt.add_done_callback(noted)
            if not single.receipt.done():
                own = AppendTimeoutError(error.timeout_ms)
                own.decided = later.receipt
                single.receipt.set_exception(own)
        return late

    @staticmethod
    def _share(singles: list[_Single], response: AppendResponse) -> None:
        """Complete the receipts of the records that a batch stored, back to back."""
        position = response.position
        next_offsets = {(row.topic, row.queue_id): row.first_offset for row in response.queues}
        for topic, queue_id, record, receipt in singles:
            offset = next_offsets[topic, queue_id]
            next_offsets[topic, queue_id] = offset + 1
            if not receipt.done():
                row = QueueRange(topic=topic, queue_id=queue_id, first_offset=offset, count=1)
                receipt.set_result(AppendResponse(position=position, queues=(row,)))
            position += len(record)
