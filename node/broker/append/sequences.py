"""Idempotence: the batch of a producer that may come next, and those that are known already.

Owns the rule (design 7): sequences of a producer are 0, 1, 2... without a gap; committed batches
are in the replicated state, batches under way here. Must not know how a batch is written. A batch
under way belongs to one term: the leader of the next one has applied all batches that survived
before it answers, so older ones do not count any more.
"""

from typing import Final, Generic, TypeVar

from node.broker.core.context import Context
from node.errors.common import (
    BusyError,
    DuplicateExpiredError,
    OutOfSequenceError,
    UnknownProducerError,
)

_Append = TypeVar("_Append")


class InFlightBatches(Generic[_Append]):
    """Batches of one producer that are written and not decided. Never empty but for a moment."""

    __slots__ = ("appends", "next_sequence", "term")

    def __init__(self, term: int) -> None:
        self.term = term
        self.next_sequence = 0
        self.appends: dict[int, _Append] = {}
        """By sequence."""


class Sequences(Generic[_Append]):
    """The batches under way of all idempotent producers. One per broker."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._in_flight: Final[dict[int, InFlightBatches[_Append]]] = {}

    def find(self, producer_id: int, sequence: int) -> _Append | int | None:
        """Return None if a batch is the next one, else where its first copy is.

        The first copy is the append under way, or the log position of its command record. Raises
        OutOfSequenceError, UnknownProducerError, DuplicateExpiredError.
        """
        flight = self._flight(producer_id) if self._in_flight else None
        producers = self._context.machine.state.producers
        # Here and below without a call: once an append.
        producer = producers[producer_id] if producer_id in producers else None  # noqa: SIM401
        if flight is not None:
            first = flight.appends.get(sequence)
            if first is not None:
                return first
            expected = flight.next_sequence
        elif producer is not None:
            expected = producer.last_sequence + 1
        elif sequence and len(producers) >= self._context.limits.producer_count_max:
            # A producer was forgotten once the table was full: this one may be it.
            raise UnknownProducerError(producer_id, sequence)
        else:  # A new producer; if this is not its first batch, that one is still to come.
            expected = 0
        if sequence == expected:
            return None
        if sequence > expected:
            raise OutOfSequenceError(producer_id, expected, sequence)
        position = producer.position_of(sequence) if producer is not None else None
        if position is None:
            first_kept = producer.first_kept if producer is not None else expected
            raise DuplicateExpiredError(producer_id, sequence, first_kept)
        return position

    def check_room(self, producer_id: int) -> None:
        """Raise BusyError for more batches under way than the window can tell duplicates of."""
        flight = self._flight(producer_id) if self._in_flight else None
        limit = self._context.limits.producer_window_count
        if flight is not None and len(flight.appends) >= limit:
            what = f"batches in flight of producer {producer_id:016x}"
            raise BusyError(what, len(flight.appends), limit)

    def begin(self, producer_id: int, sequence: int, append: _Append) -> InFlightBatches[_Append]:
        """Note that a batch was written. Give the returned value to `end`."""
        flight = self._flight(producer_id) if self._in_flight else None
        if flight is None:
            flight = self._in_flight[producer_id] = InFlightBatches(self._context.driver.term)
        flight.appends[sequence] = append
        flight.next_sequence = sequence + 1
        return flight

    def end(self, producer_id: int, sequence: int, flight: InFlightBatches[_Append]) -> None:
        """Note that a batch is decided, applied or not."""
        del flight.appends[sequence]
        flights = self._in_flight
        if not flight.appends and producer_id in flights and flights[producer_id] is flight:
            del flights[producer_id]

    def _flight(self, producer_id: int) -> InFlightBatches[_Append] | None:
        flight = self._in_flight.get(producer_id)
        if flight is not None and flight.term != self._context.driver.term:
            del self._in_flight[producer_id]
            return None
        return flight
