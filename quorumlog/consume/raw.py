"""Records as bytes: read and appended whole, for programs that move many and decode few.

Owns calls whose records are neither decoded nor encoded here (docs/format.md has their layout);
must not know what is done with them. `pipeline` is the main user: it decodes by columns.
"""

from dataclasses import dataclass, field

from quorumlog.arguments import checked, takes_fields
from quorumlog.cluster.broker_groups import BrokerGroups
from quorumlog.cluster.retry import Deadline
from quorumlog.consume.reads import OUT_OF_RANGE, ReadCalls, SinglePullArguments
from quorumlog.errors import QuorumlogError
from quorumlog.pb import log_pb2
from quorumlog.pb.transaction_pb2 import ConsumedOffsets
from quorumlog.records.queues import Pair, queue_of
from quorumlog.records.values import of_pb

DUPLICATE_EXPIRED = "node.duplicate_expired"


@dataclass(frozen=True, slots=True)
class RawRecords:
    """Records of one queue, back to back, and the offset to read next.

    With `with_entries` the records from number `entry_first_records[i]` on are of the entry
    `entry_indexes[i]` of `entry_terms[i]`; a log without entries names none.
    """

    records: bytes
    record_count: int
    next_offset: int
    first_offset: int
    end_offset: int
    applied_index: int
    node_id: int
    is_out_of_range: bool
    entry_first_records: tuple[int, ...]
    entry_indexes: tuple[int, ...]
    entry_terms: tuple[int, ...]


@dataclass(frozen=True)
class RawPull(SinglePullArguments):
    """The arguments of a raw pull."""

    queue: Pair
    offset: int
    with_entries: bool = field(default=False, kw_only=True)
    verify: bool = field(default=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class RawReceipt:
    """The place of a batch. `index` and `term` are -1 for a duplicate too old to be known."""

    index: int
    term: int
    is_duplicate: bool


@checked
class Raw:
    """The raw reads and appends; made by `client.raw`."""

    def __init__(self, groups: BrokerGroups, reads: ReadCalls, timeout_ms: int) -> None:
        self._groups = groups
        self._reads = reads
        self._timeout_ms = timeout_ms

    @takes_fields(RawPull)
    async def pull(self, wanted: RawPull) -> RawRecords:
        """Read once from an offset on. 0 for a limit means the node's own.

        Checksums are not checked. `is_out_of_range`: expired, or beyond the end. `verify` reports
        damage that the caller met there: the node checks those records again, and repairs them.
        """
        options = wanted.options(
            self._timeout_ms, with_entries=wanted.with_entries, verify=wanted.verify
        )
        queue = queue_of(wanted.queue)
        response = await self._reads.pull_response(queue, wanted.offset, options)
        return of_pb(
            RawRecords,
            response,
            first_offset=response.min_offset,
            end_offset=response.max_offset,
            is_out_of_range=response.status in OUT_OF_RANGE,
        )

    async def append(
        self,
        records: bytes,
        record_count: int,
        *,
        producer_id: int = 0,
        sequence: int = 0,
        consumed: ConsumedOffsets | None = None,
        broker_group: str = "",
        timeout_ms: int | None = None,
    ) -> RawReceipt:
        """Append encoded records as one batch, exactly once for its producer id and sequence.

        The caller owns the id: the same batch sent again under the same numbers, even after a
        restart, adds nothing. Sequences begin at 0 and have no gap. With `consumed` instead of an
        id the batch is stored where these offsets are those expected, and stores the next ones.
        Raises OutOfSequenceError, UnknownProducerError, InvalidRequestError for other messages
        under used numbers, ConflictError (also where an attempt before stored the batch), and the
        errors of any append.
        """
        request = log_pb2.AppendRequest(
            records=records,
            record_count=record_count,
            producer_id=producer_id,
            sequence=sequence,
            consumed=consumed,
            cluster_id=self._groups.cluster_id,
        )
        deadline = Deadline(timeout_ms or self._timeout_ms)
        calls = self._groups.get(broker_group).calls
        try:
            answer = await calls.leader(request, deadline)
        except QuorumlogError as error:
            if error.code == DUPLICATE_EXPIRED:
                return RawReceipt(-1, -1, is_duplicate=True)
            raise
        return RawReceipt(answer.index, answer.term, answer.is_duplicate)
