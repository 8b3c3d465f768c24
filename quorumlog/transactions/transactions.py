"""The transactions of a client: making them, and their common state.

Owns the producers of consuming transactions and the offsets that they know to be stored; must not
know how either kind works.
"""

from typing import Any

from quorumlog.arguments import checked
from quorumlog.cluster.close_once import Kept
from quorumlog.consume.group import GroupConsumer
from quorumlog.consume.single_reads import ClientCalls
from quorumlog.errors import InvalidRequestError
from quorumlog.produce.options import ProducerOptions
from quorumlog.produce.producer import Producer
from quorumlog.transactions.consume import ConsumeTransaction, Stored
from quorumlog.transactions.producer import Check, TransactionalProducer

GROUPS_MAX = 1_000  # Consumer groups whose stored offsets are remembered.
TIMES_MAX = 16  # Different timeouts of consuming transactions: nodes remember few producers.


@checked
class Transactions(ClientCalls):
    """The calls of a client that begin transactions."""

    client_id: str

    def __init__(self) -> None:
        self._made = Kept()
        """The objects that are closed with the client."""
        self._sharing: dict[int, Producer] = {}
        """Producers of consuming transactions, by timeout (ms): none fails by another's."""
        self._stored: dict[str, Stored] = {}

    def transaction(self, group: str, *, timeout_ms: int | None = None) -> ConsumeTransaction:
        """Begin to consume as a group and to produce from the messages, exactly once.

        Within `async with`: `send` the outputs, and pass the inputs to `consumed`. Leaving it
        stores both in one atomic entry, or neither. Consumers of the group must not commit by
        themselves (`auto_commit=False`), and the transactions of a queue follow one another. Use
        few values of `timeout_ms`: beyond 16 it is the client's.
        """
        groups, timeout_ms = self.broker_groups, timeout_ms or self._timeout_ms
        consumers = [one for one in self._made if isinstance(one, GroupConsumer)]
        consumers = [one for one in consumers if one.group == group]
        if any(one.auto_commit for one in consumers):
            raise InvalidRequestError(
                f"a consumer of group {group} commits automatically; make it with auto_commit=False"
            )
        if timeout_ms not in self._sharing and len(self._sharing) >= TIMES_MAX:
            timeout_ms = self._timeout_ms
        if timeout_ms not in self._sharing:
            producer = Producer(groups, ProducerOptions(), timeout_ms)
            self._sharing[timeout_ms] = self._made.add(producer)
        stored, producer = self._stored_of(group), self._sharing[timeout_ms]
        return ConsumeTransaction(
            groups, self._reads, producer, group, stored, consumers, timeout_ms
        )

    def _stored_of(self, group: str) -> Stored:
        """Return what consuming transactions of a group know to be stored. Its consumers add where
        they begin: what a transaction has consumed was read behind that."""
        if len(self._stored) >= GROUPS_MAX:
            self._stored.clear()
        return self._stored.setdefault(group, {})

    def transactional_producer(
        self,
        /,
        group: str,
        check: Check,
        *,
        check_after_ms: int = 0,
        timeout_ms: int | None = None,
        **options: Any,
    ) -> TransactionalProducer:
        """Make a producer whose messages become visible when their local work is done.

        `group` names the producers that do the same work: any of them may be asked by `check`,
        which gets a CheckedTransaction and returns "commit", "rollback" or "unknown". The cluster
        asks after `check_after_ms` (0: 6 s), then every 30 s, 15 times at most. `options` are those
        of `producer`. Its messages have unique keys.
        """
        timeout_ms = timeout_ms or self._timeout_ms
        return self._made.add(
            TransactionalProducer(
                self.broker_groups,
                ProducerOptions(**{"unique_keys": True, **options}),
                group,
                check,
                client_id=self.client_id,
                check_after_ms=check_after_ms,
                timeout_ms=timeout_ms,
            )
        )
