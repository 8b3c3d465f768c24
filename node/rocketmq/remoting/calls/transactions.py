"""Ends of transactions, and the questions to producers whose transactions stay open.

Owns the way between the positions of the protocol and the broker's transactions: the id of one is
the position of its half message. A producer is connected to every node of its routes, so the leader
asks those that are connected to it.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Final, NamedTuple

import structlog

from node.errors.common import BusyError
from node.rocketmq.cluster import Leader
from node.rocketmq.remoting.calls.shared import Calls, Shared
from node.rocketmq.remoting.conversation import Request
from node.rocketmq.remoting.protocol.answers import Answer
from node.rocketmq.remoting.protocol.codes import RequestCode
from node.rocketmq.remoting.protocol.command import Command
from node.rocketmq.remoting.protocol.fields import INT32_MAX, int_of, text_of
from node.runtime.accounts import KIB, Account, Charge, Kind
from node.users import rules
from node.users.calling import set_calling
from quorumlog.pb import transaction_pb2
from store import format as fmt
from store.record.message import decode_message, message_id

_COMMIT: Final = 8
_ROLLBACK: Final = 12
_OUTCOMES: Final = {
    _COMMIT: transaction_pb2.TRANSACTION_OUTCOME_COMMITTED,
    _ROLLBACK: transaction_pb2.TRANSACTION_OUTCOME_ROLLED_BACK,
}
Questions = Callable[
    [str, transaction_pb2.CheckTransactionsRequest],
    AsyncIterator[transaction_pb2.TransactionCheck],
]
_CHECKER: Final = "remoting"
_INNER_PRODUCERS: Final = "CLIENT_INNER_PRODUCER"
"""Group of the producer inside each consumer, which has no transactions."""
CHECK_SIZE_BYTES: Final = 32 * KIB
"""What it takes to ask a group: a stream of questions, each with its half message. An address may
have 512 groups asked, and a connection 128; others wait until there is room."""
_log: Final = structlog.get_logger(component="remoting")


class _Check(NamedTuple):
    task: asyncio.Task[None]
    charge: Charge
    leader: Leader


class TransactionCalls(Calls):
    """Answers the request that ends a transaction, and asks producers. One per gateway."""

    def __init__(self, shared: Shared, questions: Questions) -> None:
        """`questions` returns those of the leader at an address."""
        super().__init__(shared)
        self._cluster, self._questions = shared.cluster, questions
        self._checks: dict[str, _Check] = {}
        self._turn = 0
        self.asked_total = 0

    async def end_transaction(self, request: Request) -> Answer:
        """Commit or roll back; an undecided transaction stays open for another question."""
        ext = request.command.ext
        outcome = _OUTCOMES.get(int_of(ext, "commitOrRollback", hi=INT32_MAX))
        if outcome is not None:
            transaction_id, group = int_of(ext, "commitLogOffset"), text_of(ext, "producerGroup")
            await self._broker.transactions.require_publish(transaction_id, group)
            end = transaction_pb2.EndTransactionRequest(
                transaction_id=transaction_id, producer_group=group, outcome=outcome
            )
            await self._broker.transactions.end_transaction(end)
        return Answer()

    # --- Questions ---

    def begin(self) -> None:
        """See `LeaderWork.begin`: this node's broker asks from now on."""
        self.look()

    def end(self) -> None:
        """See `LeaderWork.end`: this node asks another leader from now on."""
        for group in [group for group, check in self._checks.items() if check.leader.is_here]:
            self._drop(group)

    def stop(self) -> None:
        """Ask no more."""
        for group in list(self._checks):
            self._drop(group)

    def watch(self, group: str, account: Account) -> None:
        """Pass the leader's questions on to producers of a group. The account of one of them
        pays."""
        leader = self._cluster.own_leader()
        if group == _INNER_PRODUCERS or leader is None or group in self._checks:
            return
        try:
            charge = account.charge(Kind.ROWS, CHECK_SIZE_BYTES)
        except BusyError:
            return  # The next heartbeat of the group tries again.
        task = asyncio.create_task(self._ask_all(group, leader))
        self._checks[group] = _Check(task, charge, leader)
        task.add_done_callback(lambda done: self._ended(group, done))

    def _watch_again(self, group: str) -> None:
        """Have a producer that is here pay from now on."""
        group_members = self._shared.clients.producers.get(group)
        member = None if group_members is None else next(group_members.connected(), None)
        if member is not None:
            self.watch(group, member.account)

    def _drop(self, group: str) -> None:
        check = self._checks.pop(group)
        check.charge.release()
        check.task.cancel()

    def on_closed(self, account: Account) -> Iterator[None]:
        """Let other producers pay for the groups that one asked about, in steps; it has gone."""
        for group, check in list(self._checks.items()):
            if check.charge.account is account and self._checks.get(group) is check:
                self._drop(group)
                self._watch_again(group)
                yield

    def look(self) -> None:
        """Ask the leader for each group with a producer at this node, and for no other."""
        leader, present = self._cluster.own_leader(), self._shared.clients
        for group, check in list(self._checks.items()):
            if group not in present.producers or check.leader != leader:
                self._drop(group)
        for group in present.producers:
            self._watch_again(group)

    def _ended(self, group: str, task: "asyncio.Task[None]") -> None:
        check = self._checks.get(group)
        if check is not None and check.task is task:
            self._drop(group)
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, AssertionError):
            raise error  # Reaches the loop's handler, which ends the process.
        if error is not None:
            _log.info("producers are not asked at the moment", group=group, reason=str(error))

    async def _ask_all(self, group: str, leader: Leader) -> None:
        set_calling(None)  # This node asks, and not the client whose heartbeat led here.
        request = transaction_pb2.CheckTransactionsRequest(producer_group=group, client_id=_CHECKER)
        if leader.is_here:
            checks = self._broker.transactions.check_transactions(request)
        else:
            checks = self._questions(leader.address, request)
        async for check in checks:
            if not check.record_count:
                continue
            members = [*self._shared.clients.members((False, group)).values()]
            if not members:
                return  # No producer is left; the next one's heartbeat begins again.
            message = decode_message(check.records)
            need = rules.Need(rules.Action.PUB, rules.ResourceKind.TOPIC, message.topic)
            members = [one for one in members if one.user is None or one.user.may(need)]
            if not members:
                continue  # The question holds the message.
            self._turn += 1
            key = message.properties.get(fmt.PROPERTY_UNIQUE_KEY, "")
            number, _ = self._names.shown(message.queue_id)
            host = self._shared.own_host(number)
            ext = {
                "commitLogOffset": str(check.transaction_id),
                "tranStateTableOffset": "0",
                "msgId": key,
                "transactionId": key,
                "offsetMsgId": message_id(host, check.transaction_id),
                "topic": message.topic,
                "bname": self._names.all[number],
            }
            members[self._turn % len(members)].connection.tell(
                Command(RequestCode.CHECK_TRANSACTION_STATE, ext=ext, body=check.records)
            )
            self.asked_total += 1
