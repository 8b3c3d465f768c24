"""Open transactions: listing them, describing one, and ending one by hand.

Owns these calls; must not know how calls find the leader. A transaction is
of one broker group, and its id is unique within it.
"""

from typing import Final

from quorumlog.admin.calls import AdminCalls
from quorumlog.arguments import checked
from quorumlog.pb import transaction_pb2
from quorumlog.records.batch import decode_records
from quorumlog.records.options import Decision
from quorumlog.transactions.types import (
    OUTCOMES,
    PB_OUTCOMES,
    TransactionDescription,
    TransactionInfo,
    as_decision,
)

_PAGE_COUNT: Final = 1_000


@checked
class TransactionAdmin(AdminCalls):
    """The part of `Admin` that is about transactions."""

    async def list_transactions(
        self, *, producer_group: str = "", max_count: int = 100_000
    ) -> list[TransactionInfo]:
        """Return open transactions of all broker groups, the oldest of each first."""
        transactions: list[TransactionInfo] = []
        for group in self._groups.all:
            after_id, page = 0, _PAGE_COUNT
            while page == _PAGE_COUNT and len(transactions) < max_count:
                request = transaction_pb2.ListTransactionsRequest(
                    producer_group=producer_group,
                    max_count=min(_PAGE_COUNT, max_count - len(transactions)),
                    after_id=after_id,
                )
                response = await self._lead(group, request)
                page = len(response.transactions)
                transactions += (
                    TransactionInfo.of(info, group.name) for info in response.transactions
                )
                if page:
                    after_id = response.transactions[-1].transaction_id
        return transactions

    async def describe_transaction(
        self, transaction_id: int, *, group: str = ""
    ) -> TransactionDescription:
        """Return a transaction: open, with its messages, or ended. Raises NotFoundError."""
        at = self._groups.get(group)
        request = transaction_pb2.DescribeTransactionRequest(transaction_id=transaction_id)
        response = await self._lead(at, request)
        is_open = response.outcome == transaction_pb2.TRANSACTION_OUTCOME_UNSPECIFIED
        return TransactionDescription(
            transaction_id,
            at.name,
            OUTCOMES.get(response.outcome, str(response.outcome)),
            TransactionInfo.of(response.info, at.name) if is_open else None,
            decode_records(response.records, group=at.name),
        )

    async def end_transaction(
        self, transaction_id: int, decision: Decision | str, *, group: str = ""
    ) -> bool:
        """Commit ("commit") or roll back ("rollback") by hand; return whether it was done before.

        Raises NotFoundError, TransactionEndedError when it had ended in another way.
        """
        request = transaction_pb2.EndTransactionRequest(
            transaction_id=transaction_id,
            outcome=PB_OUTCOMES[as_decision(decision)],
            cluster_id=self._groups.cluster_id,
        )
        return bool((await self._lead(self._groups.get(group), request)).was_ended)
