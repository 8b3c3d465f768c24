"""Access to the name server for a node without a replica: it asks one of several servers by gRPC.

Owns the choice of the server, the memory of its answers, and the mapping of its failures to errors.
Answers carry everything that a replica would have known, so routes are answered from memory here,
too, and stay while no server can be reached. Must not know the content of a report.
"""

import asyncio
import json
import logging
import time
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

import grpc
from google.protobuf.message import DecodeError

from node.errors.common import BadRequestError, NodeError
from node.errors.nameserver import (
    ChangeUnknownError,
    NoQuorumError,
    NotVouchedError,
    UnprovenReportError,
)
from node.errors.translation import ERROR_TRAILER
from node.nameserver.directory.directory import Command, Directory
from node.nameserver.directory.fields import RESULT, CommandRefused, Result, checked
from node.nameserver.directory.groups import GROUP
from node.nameserver.directory.proofs import CHALLENGE_AGE_MS_MAX, Prover
from node.runtime.background import BackgroundTasks
from node.runtime.channel_options import CHANNEL_OPTIONS
from node.runtime.logs.rate_limited_log import RateLimitedLog
from node.users.node_proofs import NodeProofs, signed_form
from quorumlog.foreign_json import read_json
from quorumlog.pb import common_pb2
from quorumlog.pb import nameserver_pb2 as pb
from quorumlog.pb.log_pb2 import GroupRoute, TopicRoute

TIMEOUT_MS: Final = 2_000
POLL_PERIOD_MS_MAX: Final = 2_000
"""Interval of the requests even without a report, so that changes elsewhere are known here."""
ANSWER_SIZE_BYTES_MAX: Final = 16 * 1024 * 1024
_REPORT: Final = "NameServerService/Report"
_CHALLENGE_AGE_S_MAX: Final = CHALLENGE_AGE_MS_MAX / 3_000
"""Age above which a challenge is not used: the server would refuse it soon."""
_UNPROVEN: Final = "unproven"
_NOT_BELIEVED: Final = {
    UnprovenReportError.code: _UNPROVEN,
    NotVouchedError.code: "not_vouched",
    BadRequestError.code: "bad_request",
}
"""Reasons by codes of errors that are answers: the server does not believe this broker."""
_DETAIL_SIZE_CHARS_MAX: Final = 1_000
_LOG_INTERVAL_MS: Final = 60_000
_OPTIONS: Final = (
    *CHANNEL_OPTIONS,
    ("grpc.max_receive_message_length", ANSWER_SIZE_BYTES_MAX),
)
_T = TypeVar("_T")
_log: Final = logging.getLogger(__name__)


class _Line:
    """A connection to one server, and the count of its calls.

    gRPC cancels the calls of a channel that is closed, and a task that awaits such a call would
    take this for its own cancellation. So a failed connection gets no new calls and is closed after
    its last one."""

    __slots__ = ("call_count", "challenge", "challenged_s", "channel")

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self.call_count = 0
        self.challenge = b""
        """The challenge that a proof has to answer; empty: none."""
        self.challenged_s: float | None = None
        """The time of the challenge; None: no answer came yet."""

    def is_challenged(self, now_s: float) -> bool:
        """Whether the challenge is new enough to be answered."""
        return self.challenged_s is not None and now_s - self.challenged_s < _CHALLENGE_AGE_S_MAX


class RemoteDirectory:
    """A way to the directory through other processes. Belongs to one event loop."""

    def __init__(
        self,
        servers: Iterable[str],
        group: str,
        poll_period_ms: int,
        credentials: grpc.ChannelCredentials | None = None,
        prover: Prover | None = None,
        proofs: NodeProofs | None = None,
    ) -> None:
        """Ask `servers` about `group`; `prover` signs reports if the cluster has a secret, and
        `proofs` the calls, for servers with users."""
        self._proofs = proofs
        self._servers, self._at = tuple(servers), 0
        assert self._servers, "there is no server to ask"
        self._group = group
        self._poll_period_s = min(POLL_PERIOD_MS_MAX, poll_period_ms) / 1000
        self._credentials, self.prover = credentials, prover
        self._line: _Line | None = None
        self._closing = BackgroundTasks("a connection to a name server was not closed")
        self._rate_limited = RateLimitedLog(
            _log, interval_ms=_LOG_INTERVAL_MS, monotonic_s=time.monotonic
        )
        self._directory = Directory()
        """The part of the directory about this node's group."""
        self._others: dict[str, GroupRoute] = {}
        self._topics: dict[str, tuple[str, dict[str, TopicRoute]]] = {}
        """Topics of the other groups: their version, and the topics by name."""
        self.leader = ""
        self.own_problem = ""
        """Why the group of this node has no master, as a server sees it; empty: it has one, or no
        server answers."""
        self.failure_count = 0

    async def run(self) -> None:
        """Ask at intervals, so that the memory stays up to date, until cancelled."""
        while True:
            try:
                await self._ask(None, TIMEOUT_MS)
            except NodeError as error:
                self._rate_limited.warn("no name server answers", str(error))
            await asyncio.sleep(self._poll_period_s)

    def renew(self, credentials: grpc.ChannelCredentials) -> None:
        """Connect again for the calls to come, with other credentials."""
        self._credentials = credentials
        line, self._line = self._line, None
        if line is not None and line.call_count == 0:
            self._closing.run(line.channel.close())

    async def close(self) -> None:
        """Close the connection; make no call after it."""
        line, self._line = self._line, None
        await self._closing.end()
        if line is not None:
            await line.channel.close()

    async def change(self, command: Command, *, timeout_ms: int = TIMEOUT_MS) -> Result:
        """Carry out a command; return its confirmed result, or why this node is not believed.

        Raises NoQuorumError (not applied) or ChangeUnknownError.
        """
        result = await self._say(command, timeout_ms)
        if self.prover is not None and result.reason == _UNPROVEN:
            # A server that was started again gives another challenge.
            result = await self._say(command, timeout_ms)
        return result

    async def report(self, command: Command, *, timeout_ms: int = TIMEOUT_MS) -> Result:
        """Carry out a heartbeat; raises as `change`."""
        return await self.change(command, timeout_ms=timeout_ms)

    def look(self, reader: Callable[[Directory], _T]) -> _T:
        """Call a reader with the part of the directory about this group; return its result."""
        return reader(self._directory)

    def other_groups(self, topics: Iterable[str]) -> list[GroupRoute]:
        """Return the other groups and their shares of `topics`, from the last answer."""
        wanted, shares = tuple(topics), []
        for name in sorted(self._others):
            answer = GroupRoute()
            answer.CopyFrom(self._others[name])
            version = self._topics.get(name, ("", {}))[1]
            answer.topics.extend(version[topic] for topic in wanted if topic in version)
            shares.append(answer)
        return shares

    async def _say(self, command: Command, timeout_ms: int) -> Result:
        if self.prover is not None and not self._connected().is_challenged(time.monotonic()):
            await self._ask(None, timeout_ms)
        result = await self._ask(command, timeout_ms)
        assert result is not None, "a command has a result"
        return result

    async def _ask(self, command: Command | None, timeout_ms: int) -> Result | None:
        request = pb.ReportRequest(
            group=self._group,
            command=b"" if command is None else json.dumps(command).encode(),
            known_topics={name: version for name, (version, _) in self._topics.items()},
        )
        line = self._connected()
        if command is not None and self.prover is not None:
            self.prover.seal(request, line.challenge)
        report = line.channel.unary_unary(
            f"/quorumlog.v1.{_REPORT}",
            request_serializer=pb.ReportRequest.SerializeToString,
            response_deserializer=pb.ReportResponse.FromString,
        )
        shown = self._proofs and self._proofs.signed(b"", _REPORT, signed_form(request))
        line.call_count += 1
        try:
            answer = await report(request, timeout=timeout_ms / 1000, metadata=shown)
            line.challenge, line.challenged_s = answer.challenge, time.monotonic()
            return self._learn(answer)
        except grpc.aio.AioRpcError as error:
            self._failed(line)
            if command is not None and (refused := _refusal(error)) is not None:
                return refused
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED and command is not None:
                raise ChangeUnknownError("sent to another process", timeout_ms) from error
            raise NoQuorumError(timeout_ms) from error
        except (CommandRefused, ValueError) as error:
            self._failed(line)
            raise ChangeUnknownError("answered strangely", timeout_ms) from error
        finally:
            line.call_count -= 1
            if line is not self._line and line.call_count == 0:
                await line.channel.close()

    def _connected(self) -> _Line:
        if self._line is None:
            server = self._servers[self._at % len(self._servers)]
            if self._credentials is None:
                channel = grpc.aio.insecure_channel(server, options=_OPTIONS)
            else:
                channel = grpc.aio.secure_channel(server, self._credentials, options=_OPTIONS)
            self._line = _Line(channel)
        return self._line

    def _failed(self, line: _Line) -> None:
        """Count a failure, and ask the next server from now on."""
        self.failure_count += 1
        if line is self._line:  # Else another call has turned to the next server already.
            self._at += 1
            self.leader, self.own_problem, self._line = "", "", None

    def _learn(self, answer: pb.ReportResponse) -> Result | None:
        """Store the content of an answer. Raises CommandRefused or ValueError."""
        result = checked(RESULT, read_json(answer.result)) if answer.result else None
        if answer.own_group:
            group = checked(GROUP, read_json(answer.own_group))
            self._directory.groups = {group.name: group}
        others: dict[str, GroupRoute] = {}
        for route in answer.groups:
            name, version = route.group, answer.topics_versions[route.group]
            if self._topics.get(name, ("", {}))[0] != version:
                self._topics[name] = (version, {topic.topic: topic for topic in route.topics})
            del route.topics[:]
            others[name] = route
        self._others = others
        self._topics = {name: self._topics[name] for name in others}
        self.leader, self.own_problem = answer.leader, answer.own_problem
        return result


def _refusal(error: grpc.aio.AioRpcError) -> Result | None:
    """Return the answer of a server that does not believe this node; None for other failures."""
    for key, value in error.trailing_metadata() or ():
        if key == ERROR_TRAILER and isinstance(value, bytes):
            try:
                said = common_pb2.Error.FromString(value)
            except DecodeError:
                return None
            reason = _NOT_BELIEVED.get(said.code)
            detail = said.message[:_DETAIL_SIZE_CHARS_MAX]
            return None if reason is None else Result(False, reason, detail)
    return None
