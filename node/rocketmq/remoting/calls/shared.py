"""What all requests share: the broker name that a request means, its client, this node's address.

Owns the way from a request to a broker name: the ext field of newer clients, else the port that
accepted the connection, else the name of this node.
"""

import asyncio
import socket
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final, TypeVar

import structlog
from orjson import Fragment

from node.broker import Broker
from node.broker.core.broker_names import BrokerNames
from node.broker.core.context import NAME_CHARACTERS
from node.config.settings import Settings
from node.errors.common import UnknownTopicError
from node.rocketmq.cluster import GatewayCluster
from node.rocketmq.remoting.clients import Clients
from node.rocketmq.remoting.conversation import ANSWER_SIZE_BYTES_MAX, Handler, Request
from node.rocketmq.remoting.forwarder import Forwarder
from node.rocketmq.remoting.member_reports import MemberReports
from node.rocketmq.remoting.places import Places
from node.rocketmq.remoting.protocol.answers import Answer, InvalidError, RefusedError
from node.rocketmq.remoting.protocol.codes import RequestCode, ResponseCode
from node.rocketmq.remoting.protocol.fields import int_of, parsed_host
from node.rocketmq.remoting.protocol.marks import NAME
from node.runtime.accounts import Kind
from node.runtime.json_text import dump_json
from node.state.state import INTERNAL_TOPICS
from node.state.tables.topic_types import TopicSettings
from node.users import rules
from node.users.calling import calling, may
from quorumlog.pb.common_pb2 import CONSISTENCY_LEADER
from quorumlog.pb.log_pb2 import OffsetByTimeRequest
from store.format import LOOPBACK, RETRY_TOPIC_PREFIX, Host

_SHORT_NAME_CODES: Final = frozenset({RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE})
"""Requests whose fields have one letter: the broker name is `n`."""
_FRAGMENT_SIZE_BYTES: Final = 256
"""Objects of a row of an answer, beside its bytes."""
_Row = TypeVar("_Row")
_log: Final = structlog.get_logger(component="remoting")


class Shared:
    """The parts that the requests of all subjects use. One per gateway."""

    clients: Clients
    """The table of `GroupCalls`, which puts it here."""
    reports: MemberReports
    """Likewise."""

    def __init__(
        self,
        broker: Broker,
        cluster: GatewayCluster,
        places: Places,
        forwarder: Forwarder,
        own_node_address: str,
        settings: Settings,
    ) -> None:
        self.broker: Final = broker
        self.cluster: Final = cluster
        self.settings: Final = settings
        context = self.context = broker.context
        self.places: Final = places
        self.forwarder: Final = forwarder
        self.names: Final[BrokerNames] = places.names_of(context.identity.group)
        self.own_addresses: Final = [
            places.address_of(own_node_address, number) for number in range(self.names.count)
        ]
        """At which this node answers for each broker name."""
        self._hosts: dict[str, Host] = {}
        """Addresses that were looked up."""
        self._unknown_names: set[str] = set()
        ids = sorted({*context.identity.addresses, *context.state.members})
        own = context.driver.node_id
        self.own_number: Final = (ids.index(own) if own in ids else 0) % self.names.count
        """Of the broker name that stays with this node while it is up."""

    # --- The leader ---

    def at_leader(self, run: Handler, *, is_repeatable: bool = True) -> Handler:
        """Make the handler of a request that the leader answers, as `run` does there."""
        return partial(self.ask_leader, run=run, is_repeatable=is_repeatable)

    async def ask_leader(
        self, request: Request, run: Handler, *, is_repeatable: bool = True
    ) -> Answer:
        """Have the leader answer, as `run` does there. See `Forwarder.answer`."""
        return await self.forwarder.answer(
            request, self.number_of(request), partial(run, request), is_repeatable=is_repeatable
        )

    # --- Answers ---

    async def encoded(
        self, request: Request, rows: Iterable[_Row], document: Callable[[_Row], object]
    ) -> list[Fragment]:
        """Return rows of an answer as JSON, made in turns of the loop. Raises as `pieces`."""
        made = await self.pieces(request, rows, lambda row: dump_json(document(row)))
        return [*map(Fragment, made)]

    async def pieces(
        self, request: Request, rows: Iterable[_Row], encode: Callable[[_Row], bytes]
    ) -> list[bytes]:
        """Return rows of an answer as bytes, made in turns of the loop. The caller's account pays
        for them until its call is over. Raises BusyError, and RefusedError for too many bytes."""
        charge = request.account.charge(Kind.DOCUMENTS)
        encoded_rows = list[bytes]()
        task, size_bytes = asyncio.current_task(), 0
        assert task is not None, "a call is a task"
        task.add_done_callback(lambda _: charge.release())
        async for row in self.context.turn.over(rows):
            data = encode(row)
            size_bytes += len(data)
            if size_bytes > ANSWER_SIZE_BYTES_MAX:
                text = f"the answer has more than {ANSWER_SIZE_BYTES_MAX} bytes; ask for less"
                raise RefusedError(ResponseCode.SYSTEM_ERROR, text)
            encoded_rows.append(data)
            # The whole answer is made of the rows at the end.
            charge.resize(2 * size_bytes + _FRAGMENT_SIZE_BYTES * len(encoded_rows))
        return encoded_rows

    async def shown(self, kind: rules.ResourceKind, names: Iterable[str]) -> list[str]:
        """Return the names of a list that its caller may see, in their order."""
        if calling() is None:
            return list(names)
        known = self.context.turn.over([*names])
        return [name async for name in known if may(rules.Action.LIST, kind, name)]

    # --- Broker names ---

    def number_of(self, request: Request) -> int:
        """Return the number of the broker name that a request means. Raises RefusedError."""
        command = request.command
        ext, count = command.ext, self.names.count
        if NAME in ext:
            return int_of(ext, NAME, hi=count - 1)
        name = ext.get("n" if command.code in _SHORT_NAME_CODES else "bname")
        if name:
            number = self.names.number_of(name)
            if number is None:
                text = f"no broker is named {name[:200]!r} here; ask for the route again"
                raise InvalidError(text)
            return number
        number = request.connection.connection.port_number
        return number if 0 <= number < count else self.own_number

    def topic(self, name: str) -> TopicSettings:
        """Return a topic that clients may know. Raises UnknownTopicError."""
        if name in INTERNAL_TOPICS:
            raise UnknownTopicError(name)
        return self.context.topic(name)

    def queues_of(self, topic: str, number: int) -> Iterator[tuple[int, int]]:
        """Yield the queues of a topic that a broker name owns: as it shows them, and the group's.
        Raises UnknownTopicError."""
        queue_count = 1 if self.is_unmade(topic) else self.topic(topic).queue_count
        count = self.names.queue_count(number, queue_count)
        for shown in range(count):
            yield shown, self.names.queue(number, shown)

    def by_queue(self, topic: str, number: int, shown: int, value: object) -> bytes:
        """Return an entry of a table by queues: RocketMQ's keys are objects, which is no JSON."""
        key = {"brokerName": self.names.all[number], "queueId": shown, "topic": topic}
        return b"%b:%b" % (dump_json(key), dump_json(value))

    def own_host(self, number: int) -> Host:
        """Return the address at which this node answers for a broker name, as records hold it;
        127.0.0.1 for a name without an address."""
        address = self.own_addresses[number]
        host = self._hosts.get(address) or parsed_host(address)
        return host or (LOOPBACK[0], int(address.rpartition(":")[2] or 0))

    def routed_host(self, number: int) -> Host:
        """Return the address of a broker name in routes: a tool that looks whether a group has
        consumed a message compares it with the message's."""
        address = self.places.routed_address(self.context.identity.group, number)
        return self._hosts.get(address) or parsed_host(address) or self.own_host(number)

    async def resolve(self) -> None:
        """Look up the names by which this node is known: message ids hold addresses."""
        loop = asyncio.get_running_loop()
        numbers, group = range(self.names.count), self.context.identity.group
        addresses = {*self.own_addresses} | {
            self.places.routed_address(group, number) for number in numbers
        }
        for address in addresses - {""}:  # Of a node without the port.
            if address in self._hosts or parsed_host(address) is not None:
                continue
            name, _, port = address.rpartition(":")
            try:
                rows = await loop.getaddrinfo(
                    name, int(port), family=socket.AF_INET, type=socket.SOCK_STREAM
                )
            except OSError as error:
                if name not in self._unknown_names:
                    self._unknown_names.add(name)
                    text = "message ids hold 127.0.0.1 while this node's name has no address"
                    _log.warning(text, name=name, reason=str(error))
            else:
                self._hosts[address] = (str(rows[0][4][0]), int(port))

    def is_unmade(self, topic: str) -> bool:
        """Whether this is the retry topic of a group to which nothing was given back so far.

        Consumers read theirs from the start: it answers as a topic of one empty queue.
        """
        group = topic.removeprefix(RETRY_TOPIC_PREFIX)
        limit = self.context.limits.name_size_characters_max
        return (
            group != topic
            and 0 < len(group) <= limit
            and NAME_CHARACTERS.issuperset(group)
            and self.context.state.topic(topic) is None
        )


class Calls:
    """Base of the parts that answer the requests about one subject. One of each per gateway."""

    def __init__(self, shared: Shared) -> None:
        self._shared: Final = shared
        self._broker: Final = shared.broker
        self._context: Final = shared.context
        self._names: Final = shared.names

    async def _offset_at(self, topic: str, queue_id: int, unix_ms: int) -> int:
        request = OffsetByTimeRequest(
            topic=topic, queue_id=queue_id, unix_ms=unix_ms, consistency=CONSISTENCY_LEADER
        )
        return (await self._broker.queries.offset_by_time(request)).offset
