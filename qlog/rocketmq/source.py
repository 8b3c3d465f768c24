"""The source: a RocketMQ cluster, asked over its remoting protocol.

Owns the connections, their access, repeated attempts and the requests; the forms of answers are
those of shapes. Must not know what becomes of the answers. Nothing is changed in the source:
messages are read as RocketMQ's own tools read them, and no offset is stored.
"""

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from node.rocketmq.remoting.access import ACCESS_KEY, SIGNATURE, signature
from node.rocketmq.remoting.channel import BrokenError, NotConnectedError, RemotingChannel
from node.rocketmq.remoting.protocol.codes import RequestCode, ResponseCode
from node.rocketmq.remoting.protocol.command import Command
from node.state.tables.topic_types import MIXED, type_of_attributes
from qlog.rocketmq.records import messages_in
from qlog.rocketmq.shapes import (
    BROKER_COUNT_MAX,
    GROUP_COUNT_MAX,
    NAME_SIZE_BYTES_MAX,
    ROUTE,
    SETTINGS,
    TABLE,
    TOPIC_COUNT_MAX,
    Bounds,
    NoMasterError,
    SourceError,
    SourceQueue,
    document_of,
    list_of,
    mapping_of,
    masters_of,
    name_of,
    number_of,
    queues_of,
)
from quorumlog.command_errors import CliError, ExitCode
from quorumlog.user_files import CERTIFICATE, UserFileError, read_keys, read_pem
from store.record.message import Message

ATTEMPT_COUNT_MAX: Final = 5
PAUSE_S: Final = 0.2
"""Before the second attempt; then twice as long each time."""
ANSWER_S: Final = 10.0
PULL_COUNT: Final = 512
"""Messages that a pull asks for. A broker has a limit of its own, 32 by default."""
PULL_SIZE_BYTES: Final = 1 << 20
GROUP: Final = "TOOLS_CONSUMER"
"""The group of RocketMQ's tools: every broker knows it, also one that makes no groups."""
GROUP_PAGE_COUNT: Final = 1_000
"""Groups in a page, at most."""
PAGE_COUNT_MAX: Final = 4_096
"""Pages of groups in a run, over all brokers."""
IDLE_PULL_COUNT_MAX: Final = 10_000
"""Pulls in a row, over all queues, that bring no message. A hole in a queue takes one or two."""
IDLE_S_MAX: Final = 600.0
"""Time of these pulls: a broker may take its time for each."""
SILENT_CALL_COUNT_MAX: Final = 16
"""Calls in a row to an address without an answer in any attempt; later ones fail at once."""
ADDRESS_COUNT_MAX: Final = 4_096
"""Addresses that a run asks."""
CHANNEL_COUNT_MAX: Final = 32
"""Connections that are open; each holds up to one answer that is half there."""

_OK: Final = frozenset({ResponseCode.SUCCESS})
_BUSY: Final = frozenset({ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE})
_PULL: Final = _OK | {
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
}
_OPTIONAL: Final = _OK | {ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.SYSTEM_ERROR}


class Access(NamedTuple):
    """How a source lets a reader in."""

    key: str = ""
    """Access key that commands are signed with; empty: they are not signed."""
    secret: str = ""
    tls: ssl.SSLContext | None = None


OPEN: Final = Access()
"""Lets everybody read."""


def access_of(keys_file: Path | None, ca_file: Path | None) -> Access:
    """Read the first key of a file and the certificate of a CA. Raises CliError.

    Names in certificates are not compared, as RocketMQ's own clients do not: its brokers are known
    by their addresses.
    """
    key, secret, tls = "", "", None
    file = keys_file
    try:
        if keys_file is not None:
            key, secret = next(iter(read_keys(keys_file).items()))
        if ca_file is not None:
            file = ca_file
            read_pem(ca_file, CERTIFICATE)
            tls = ssl.create_default_context(cafile=ca_file)
            tls.check_hostname = False
    except UserFileError as error:
        what = f"{file} cannot be used"
        raise CliError(what, error.what, error.do, ExitCode.USAGE) from None
    except (OSError, ValueError) as error:  # Errors of TLS are among the first.
        raise CliError(
            f"{file} cannot be used",
            str(error),
            "write the certificate of the authority into it, as PEM",
            ExitCode.USAGE,
        ) from None
    return Access(key, secret, tls)


class RocketSource:
    """A RocketMQ cluster behind its name servers. `close` it."""

    def __init__(
        self, name_servers: Sequence[str], access: Access = OPEN, *, pause_s: float = PAUSE_S
    ) -> None:
        self._name_servers = tuple(name_servers)
        self._access = access
        self._pause_s = pause_s
        self._channels: dict[str, RemotingChannel] = {}
        self._connecting = asyncio.Lock()
        self._idle_pull_count, self._idle_since_s = 0, 0.0
        self._page_count = 0
        self._silent_counts: dict[str, int] = {}
        """By address, calls in a row that got no answer."""

    def close(self) -> None:
        for channel in list(self._channels.values()):
            channel.close()

    # --- The cluster ---

    async def brokers(self) -> tuple[dict[str, str], frozenset[str], dict[str, NoMasterError]]:
        """Return the masters by broker name, the names of clusters and brokers, and the brokers
        without a master: they hold up nothing of the others."""
        where = "the list of brokers"
        document = await self._name_server(RequestCode.GET_BROKER_CLUSTER_INFO, {}, where, ROUTE)
        rows = mapping_of(document.get("brokerAddrTable"), where, BROKER_COUNT_MAX)
        clusters = mapping_of(document.get("clusterAddrTable"), where, BROKER_COUNT_MAX)
        masters, without = dict[str, str](), dict[str, NoMasterError]()
        for name, row in rows.items():
            try:
                masters |= masters_of({name: row}, where)
            except NoMasterError as error:
                without[name] = error
        return masters, frozenset({*rows, *clusters}), without

    async def topics(self) -> list[str]:
        where = "the list of topics"
        code = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER
        names = (await self._name_server(code, {}, where, TABLE)).get("topicList")
        return sorted({name_of(name, where) for name in list_of(names, where, TOPIC_COUNT_MAX)})

    async def queues(self, topic: str) -> list[SourceQueue]:
        """Return the read queues of a topic in their order."""
        where = f"route of {topic}"
        ext = {"topic": topic, "acceptStandardJsonOnly": "true"}
        route = await self._name_server(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext, where, ROUTE)
        return queues_of(route, topic, where)

    async def message_type(self, topic: str, address: str) -> str:
        """Return the type of messages that a topic is for; MIXED where brokers have no types."""
        ext = {"topic": topic, "lo": "true"}
        answer = await self._ask(address, RequestCode.GET_TOPIC_CONFIG, ext, _OPTIONAL)
        if answer.code != ResponseCode.SUCCESS:
            return MIXED
        settings = document_of(answer.body, f"settings of {topic}", SETTINGS)
        return type_of_attributes(settings.get("attributes"))

    async def _name_server(
        self, code: RequestCode, ext: Mapping[str, str], where: str, bounds: Bounds
    ) -> dict[str, Any]:
        for address in self._name_servers[:-1]:
            try:
                return document_of((await self._ask(address, code, ext)).body, where, bounds)
            except SourceError:
                continue  # The next one knows the same.
        answer = await self._ask(self._name_servers[-1], code, ext)
        return document_of(answer.body, where, bounds)

    # --- Queues ---

    async def bounds(self, queue: SourceQueue) -> tuple[int, int]:
        """Return the first offset of a queue, and the next one to be written."""
        ext = _place(queue)
        lo = await self._ask(queue.address, RequestCode.GET_MIN_OFFSET, ext)
        hi = await self._ask(queue.address, RequestCode.GET_MAX_OFFSET, ext)
        ends = number_of(lo.ext, "offset", str(queue)), number_of(hi.ext, "offset", str(queue))
        if ends[0] > ends[1]:
            raise SourceError.foreign(str(queue), f"first offset {ends[0]}, end {ends[1]}")
        return ends

    async def pull(self, queue: SourceQueue, offset: int) -> tuple[list[Message], int]:
        """Read once from an offset on; return messages, and the offset to go on at: the one asked
        for if there is nothing there now."""
        ext = _place(queue) | {
            "consumerGroup": GROUP,
            "queueOffset": str(offset),
            "maxMsgNums": str(PULL_COUNT),
            "maxMsgBytes": str(PULL_SIZE_BYTES),
            "sysFlag": "4",
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subscription": "*",
            "subVersion": "0",
            "expressionType": "TAG",
        }
        answer = await self._ask(queue.address, RequestCode.PULL_MESSAGE, ext, _PULL)
        next_offset = number_of(answer.ext, "nextBeginOffset", str(queue))
        is_found = answer.code == ResponseCode.SUCCESS
        messages: list[Message] = []
        if is_found:
            messages = messages_in(answer.body, queue.topic, offset, str(queue), PULL_COUNT)
        least = messages[-1].queue_offset + 1 if messages else offset
        if next_offset < least or (is_found and not messages):
            count = len(messages)
            raise SourceError.foreign(
                str(queue), f"{count} messages from {offset} on, and {next_offset} comes next"
            )
        now_s = asyncio.get_running_loop().time()
        if messages or not self._idle_pull_count:
            self._idle_since_s = now_s
        self._idle_pull_count = 0 if messages else self._idle_pull_count + 1
        is_late = now_s - self._idle_since_s > IDLE_S_MAX
        if self._idle_pull_count > IDLE_PULL_COUNT_MAX or is_late:
            raise SourceError(
                f"{queue} gives no message at offset {offset}",
                f"{self._idle_pull_count} pulls in a row brought none; each named another offset",
                "check the broker, or choose other topics with --topic",
            )
        return messages, next_offset

    # --- Groups ---

    async def group_pages(self, address: str) -> AsyncIterator[dict[str, Mapping[str, Any]]]:
        """Yield the settings of all groups that a broker knows, by name, page by page."""
        where, count = f"groups of {address}", 0
        while True:  # New brokers answer in pages, others at once.
            self._page_count += 1
            if self._page_count > PAGE_COUNT_MAX:
                raise SourceError.foreign(where, f"more than {PAGE_COUNT_MAX} pages of groups")
            ext = {"groupSeq": str(count), "maxGroupNum": str(GROUP_PAGE_COUNT)}
            code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
            answer = await self._ask(address, code, ext)
            table = document_of(answer.body, where, TABLE).get("subscriptionGroupTable")
            page = mapping_of(table, where, GROUP_COUNT_MAX)
            yield {name_of(name, where): mapping_of(row, where) for name, row in page.items()}
            count += len(page)
            if not page or "totalGroupNum" not in answer.ext:
                return
            if count >= number_of(answer.ext, "totalGroupNum", where):
                return

    async def topics_of_group(self, group: str, address: str) -> list[str] | None:
        """Return the topics of which a broker has offsets of a group; None: it cannot tell."""
        code, where = RequestCode.QUERY_TOPICS_BY_CONSUMER, f"topics of group {group}"
        answer = await self._ask(address, code, {"group": group}, _OPTIONAL)
        if answer.code != ResponseCode.SUCCESS:
            return None
        document = document_of(answer.body, where, TABLE)
        names = list_of(document.get("topicList"), where, TOPIC_COUNT_MAX)
        return [name_of(name, where) for name in names]

    async def group_offset(self, group: str, queue: SourceQueue) -> int | None:
        """Return how far a group is in a queue; None without an offset."""
        ext = _place(queue) | {"consumerGroup": group, "setZeroIfNotFound": "false"}
        code = RequestCode.QUERY_CONSUMER_OFFSET
        accepted = _OK | {ResponseCode.QUERY_NOT_FOUND}
        answer = await self._ask(queue.address, code, ext, accepted)
        if answer.code != ResponseCode.SUCCESS:
            return None
        return number_of(answer.ext, "offset", str(queue))

    # --- Calls ---

    async def _ask(
        self,
        address: str,
        code: RequestCode,
        ext: Mapping[str, str],
        accepted: frozenset[ResponseCode] = _OK,
    ) -> Command:
        """Make a call, again after a failure that may pass. Raises SourceError."""
        silent_count = self._silent_counts.setdefault(address, 0)
        if len(self._silent_counts) > ADDRESS_COUNT_MAX:
            del self._silent_counts[address]
            raise SourceError.foreign(address, f"the source names {ADDRESS_COUNT_MAX} others")
        is_given_up = silent_count >= SILENT_CALL_COUNT_MAX
        is_answered = is_given_up
        why = f"{SILENT_CALL_COUNT_MAX} calls before it got no answer" if is_given_up else ""
        for attempt in range(0 if is_given_up else ATTEMPT_COUNT_MAX):
            if attempt:
                await asyncio.sleep(self._pause_s * (1 << attempt - 1))
            try:
                channel = await self._channel(address)
                answer = await channel.ask(self._command(code, ext), ANSWER_S)
            except (NotConnectedError, BrokenError) as error:
                why = str(error)
                continue
            is_answered, self._silent_counts[address] = True, 0
            if answer.code in accepted:
                return answer
            why = f"it answered {answer.code}: {(answer.remark or '')[:NAME_SIZE_BYTES_MAX]!r}"
            if answer.code not in _BUSY:
                break
        if not is_answered:
            self._silent_counts[address] += 1
        raise SourceError(
            f"{address} does not do {code.name}"
            + (f" of {ext['topic']}" if "topic" in ext else ""),
            why,
            "correct that and run it again: it goes on where it is",
        )

    def _command(self, code: RequestCode, ext: Mapping[str, str]) -> Command:
        """Return a command, signed where there is a key."""
        command, access = Command(int(code), ext=dict(ext)), self._access
        if access.key:
            command.ext[ACCESS_KEY] = access.key
            signed = signature(command, access.secret.encode())
            command.ext[SIGNATURE] = base64.b64encode(signed).decode()
        return command

    async def _channel(self, address: str) -> RemotingChannel:
        async with self._connecting:
            channel = self._channels.pop(address, None)
            if channel is None:
                if len(self._channels) >= CHANNEL_COUNT_MAX:
                    next(iter(self._channels.values())).close()  # The one unused for longest.
                host, _, port = address.rpartition(":")
                tls = self._access.tls
                channel = await RemotingChannel.connect(host, int(port), tls, self._forget)
            self._channels[address] = channel
            return channel

    def _forget(self, channel: RemotingChannel) -> None:
        self._channels = {a: one for a, one in self._channels.items() if one is not channel}


def _place(queue: SourceQueue) -> dict[str, str]:
    return {"topic": queue.topic, "queueId": str(queue.queue_id), "bname": queue.broker}
