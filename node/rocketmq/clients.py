"""Clients of this node: their identity, and the stream on which the node can send them commands.

Owns the table; the accounts bound it, and what an address has too much of makes room for its own
new clients. No call needs it: clients call before they have introduced
themselves, and some do not for minutes after a node was restarted (protocol 3, 5.2).
"""

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from node.broker.groups.member import MemberKind, Reported
from node.errors.common import BusyError
from node.rocketmq.protocol.statuses import CallRefusedError
from node.runtime.accounts import Account, Charge, Kind, Level, caller
from node.runtime.rows import remove_from
from node.users import rules
from node.users.calling import Calling, calling
from quorumlog.pb import rocketmq_pb2 as pb
from quorumlog.pb.rocketmq_pb2 import Code

_EXPIRED_COUNT: Final = 512
SILENT_S_MAX: Final = 120.0
"""Time after which a silent client without a stream is forgotten; until then its id is that of its
address."""
ALIVE_S: Final = 35.0
"""Time after its last call for which messages of a client without a stream are renewed: three
heartbeats, and some."""
COMMAND_COUNT_MAX: Final = 64
"""Commands that wait for one client. More are dropped: their caller repeats them."""
QUESTION_SIZE_BYTES_MAX: Final = 64 << 20
"""Size of the questions about transactions that wait for clients, with their messages, of all
clients; a client that takes none has an eighth at most. Beyond it the gateway asks none until
some went out."""
QUESTION_SHARES: Final = 8
_ROW_SIZE_BYTES: Final = 800
_TEXT_SIZE_BYTES: Final = 100
"""Memory of a client and of a topic beside their texts, about."""


@dataclass(slots=True, eq=False)
class GatewayClient:
    """One client instance, as it introduced itself."""

    client_id: str
    charge: Charge | None
    topics: frozenset[str] = frozenset()
    """Topics that a producer sends to."""
    group: str = ""
    """Of a consumer."""
    filters: dict[str, str] = field(default_factory=dict)
    """What a consumer reads: filters by topic."""
    commands: asyncio.Queue[pb.TelemetryCommand] | None = None
    """Commands for its stream; None: the client has no stream at this node."""
    last_seen_s: float = 0.0
    question_size_bytes: int = 0
    user: Calling | None = None
    """Of its first call, or of its stream; None: users are off."""

    @property
    def is_callers(self) -> bool:
        """Whether the address and the user of the running call are those of this client."""
        user = calling()
        is_users = user is None or self.user is None or user.name == self.user.name
        return is_users and pays_for(self.charge, caller())

    @property
    def host(self) -> str:
        """The address that pays for it."""
        return "" if self.charge is None else self.charge.account.address.what


class GatewayClients:
    """The table of clients. One per gateway."""

    def __init__(self) -> None:
        self._clients: OrderedDict[str, GatewayClient] = OrderedDict()
        """Those that were silent for longest first, as in the next table."""
        self._by_host: dict[str, OrderedDict[str, GatewayClient]] = {}
        """The same by the address that pays. Invariant: no inner table is empty."""
        self._by_topic: dict[str, dict[GatewayClient, None]] = {}
        """Those that send to a topic. Invariant: no inner table is empty."""
        self.consumers: dict[str, dict[GatewayClient, None]] = {}
        """By group. Invariant: no inner table is empty."""
        self.changed: set[str] = set()
        """Consumer groups whose members changed since the last report to the leader."""
        self._topics_of_host: dict[str, dict[str, int]] = {}
        """By address, how many of its clients send to each topic: no zeros, no empty tables."""
        self.question_size_bytes = 0
        """Size of the questions that wait for clients, or are on their way out."""

    def __len__(self) -> int:
        return len(self._clients)

    def check_own(self, client_id: str) -> None:
        """Raise CallRefusedError if this id is that of a client of another address or user, which
        did not announce its end and was not silent for long: a stranger must not end it, or take
        its place while its connection is broken."""
        client = self._clients.get(client_id)
        if client is None or client.is_callers:
            return
        if client.commands is not None or time.monotonic() - client.last_seen_s < SILENT_S_MAX:
            text = "a client of another address or user has this id; give each client its own"
            raise CallRefusedError(Code.FORBIDDEN, text)

    def seen(self, client_id: str) -> GatewayClient:
        """Note that a client called; return it. Raises BusyError, and as `check_own`."""
        self.check_own(client_id)
        client = self._clients.get(client_id)
        if client is not None and not client.is_callers:
            self.left(client_id)  # It is silent, and its id goes to the caller.
            client = None
        if client is None:
            charge = self._charge(_size_bytes(client_id, frozenset()))
            client = GatewayClient(client_id, charge, user=calling())
            self._clients[client_id] = client
            self._by_host.setdefault(client.host, OrderedDict())[client_id] = client
        client.last_seen_s = time.monotonic()
        self._clients.move_to_end(client_id)
        self._by_host[client.host].move_to_end(client_id)
        self._forget_silent(client.last_seen_s)
        return client

    def sends_to(self, client: GatewayClient, topics: frozenset[str]) -> None:
        """Note the topics that a producer sends to. Raises BusyError."""
        if self._clients.get(client.client_id) is not client:
            return
        if client.charge is not None:
            client.charge.resize(_size_bytes(client.client_id, topics))
        self._forget_topics(client)
        client.topics = topics
        counts = self._topics_of_host.setdefault(client.host, {}) if topics else {}
        for topic in topics:
            self._by_topic.setdefault(topic, {})[client] = None
            counts[topic] = counts.get(topic, 0) + 1

    def consumes(self, client: GatewayClient, group: str, filters: dict[str, str]) -> None:
        """Note the group of a consumer and what it reads. Raises BusyError."""
        if self._clients.get(client.client_id) is not client:
            return
        if (client.group, client.filters) == (group, filters):
            return
        if client.charge is not None:
            texts = frozenset((group, *filters, *filters.values()))
            client.charge.resize(_size_bytes(client.client_id, texts))
        self._forget_group(client)
        client.group, client.filters = group, filters
        if group:
            self.consumers.setdefault(group, {})[client] = None
            self.changed.add(group)

    def _forget_group(self, client: GatewayClient) -> None:
        if client.group:
            remove_from(self.consumers, client.group, client)
            self.changed.add(client.group)
        client.group, client.filters = "", {}

    def reported(self, group: str) -> Reported | None:
        """Return the members of a group and what they read; None without any."""
        members = self.consumers.get(group)
        if members is None:
            return None
        filters = {one.client_id: one.filters for one in members}
        return Reported(dict.fromkeys(filters, MemberKind.POPPING), filters)

    def _forget_topics(self, client: GatewayClient) -> None:
        for topic in client.topics:
            remove_from(self._by_topic, topic, client)
            counts = self._topics_of_host[client.host]
            counts[topic] -= 1
            if not counts[topic]:
                remove_from(self._topics_of_host, client.host, topic)
        client.topics = frozenset()

    def left(self, client_id: str) -> None:
        """Forget a client that announced its end."""
        client = self._clients.pop(client_id, None)
        if client is None:
            return
        remove_from(self._by_host, client.host, client_id)
        self._forget_topics(client)
        self._forget_group(client)
        if client.charge is not None:
            client.charge.release()

    def _charge(self, size_bytes: int) -> Charge | None:
        """Charge the caller for a client, for which one other is forgotten if need be."""
        account = caller()
        if account is None:
            return None
        try:
            return account.charge(Kind.MEMBERS, size_bytes)
        except BusyError:
            gone = self._in_the_way(account, size_bytes)
            if gone is None:
                raise
            self.left(gone)
            return account.charge(Kind.MEMBERS, size_bytes)

    def _in_the_way(self, account: Account, size_bytes: int) -> str | None:
        """Return the client that makes room where a charge is over a limit: one of the same
        connection or address; of another one only where all callers together have too much."""
        full = next(level for level in account.levels if _is_full(level, size_bytes))
        rows: Mapping[str, GatewayClient] = self._by_host.get(account.address.what, {})
        if full is account.accounts.total and not rows:
            rows = max(self._by_host.values(), key=len, default={})
        for client_id, one in rows.items():
            is_payer = one.charge is not None and one.charge.account is account
            if one.commands is None and (is_payer or full is not account):
                return client_id
        return None

    def is_alive(self, client_id: str) -> bool:
        """Whether a client is alive: it has a stream here, or called a moment ago.

        Some clients need minutes to open a new stream after the old one broke.
        """
        client = self._clients.get(client_id)
        if client is None:
            return False
        return client.commands is not None or time.monotonic() - client.last_seen_s < ALIVE_S

    def producers_of(self, topic: str) -> Iterator[GatewayClient]:
        """Yield the producers of a topic that can be asked something, with its messages."""
        need = rules.Need(rules.Action.PUB, rules.ResourceKind.TOPIC, topic)
        for client in self._by_topic.get(topic, ()):
            user = client.user
            if client.commands is not None and (user is None or user.may(need)):
                yield client

    def ask(self, topic: str, question: pb.TelemetryCommand) -> bool:
        """Ask one producer of a topic; return whether there was one with room for the question.

        A question larger than a client's room is sent alone.
        """
        size_bytes = question.ByteSize()
        client = self.with_room(topic, size_bytes)
        if client is None or client.commands is None:
            return False
        client.commands.put_nowait(question)
        self._hold(client, size_bytes)
        return True

    def with_room(self, topic: str, size_bytes: int) -> "GatewayClient | None":
        """Return a producer of a topic that has room for a question of this size."""
        held_bytes = self.question_size_bytes
        if held_bytes and held_bytes + size_bytes > QUESTION_SIZE_BYTES_MAX:
            return None
        share_bytes = QUESTION_SIZE_BYTES_MAX // QUESTION_SHARES
        for client in self.producers_of(topic):
            held_bytes = client.question_size_bytes
            has_room = not held_bytes or held_bytes + size_bytes <= share_bytes
            if has_room and client.commands is not None and not client.commands.full():
                return client
        return None

    def went_out(self, client: GatewayClient, command: pb.TelemetryCommand) -> None:
        """Release a command that does not wait any more: its client has it, or has gone."""
        if command.HasField("recover_orphaned_transaction_command"):
            self._hold(client, -command.ByteSize())

    def _hold(self, client: GatewayClient, size_bytes: int) -> None:
        client.question_size_bytes += size_bytes
        self.question_size_bytes += size_bytes

    def producer_topics(self, existing: Set[str]) -> Iterator[str]:
        """Yield the topics of all producers that can be asked something, of those that exist, once:
        one that each address names in turn."""
        seen = set[str]()
        rows = deque(filter(existing.__contains__, row) for row in self._topics_of_host.values())
        while rows:
            row = rows.popleft()
            topic = next(row, None)
            if topic is None:
                continue
            rows.append(row)
            if topic not in seen and next(self.producers_of(topic), None) is not None:
                yield topic
            seen.add(topic)

    @property
    def stream_count(self) -> int:
        """Count of clients with a stream."""
        return sum(client.commands is not None for client in self._clients.values())

    def expire(self) -> Iterator[None]:
        """Forget clients that were silent for too long, some at a time, in steps."""
        now_s = time.monotonic()
        for _ in range(min(len(self._clients), _EXPIRED_COUNT)):
            self._forget_silent(now_s)
            yield

    def _forget_silent(self, now_s: float) -> None:
        """Look at two clients for each that calls."""
        for client_id, client in list(islice(self._clients.items(), 2)):
            if client.commands is not None:
                self._clients.move_to_end(client_id)
            elif now_s - client.last_seen_s > SILENT_S_MAX:
                self.left(client_id)


def pays_for(charge: Charge | None, account: Account | None) -> bool:
    """Whether the address of a caller pays for something; the node itself may end anything."""
    if charge is None or account is None:
        return True
    return charge.account.address.what == account.address.what


def _is_full(level: Level, size_bytes: int) -> bool:
    count_max, size_bytes_max = level.limits[Kind.MEMBERS]
    held = level.counts[Kind.MEMBERS], level.sizes[Kind.MEMBERS]
    return held[0] >= count_max or held[1] + size_bytes > size_bytes_max


def _size_bytes(client_id: str, topics: frozenset[str]) -> int:
    return _ROW_SIZE_BYTES + len(client_id) + sum(_TEXT_SIZE_BYTES + len(name) for name in topics)
