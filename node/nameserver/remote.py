"""The name server as a node sees it that has no replica: one of others is asked, over gRPC.

Owns which server is asked, what is kept of its answers, and how its failures are called. Answers
carry all that a replica would have known, so routes are answered from memory here, too, and stay
when no server can be reached. Must not know what a report contains.
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
from node.nameserver.directory.fields import Refusal, Result
from node.nameserver.directory.groups import Group
from node.nameserver.directory.proofs import CHALLENGE_AGE_MS_MAX, Prover
from node.runtime.json_text import read_json
from node.runtime.rate_limited_log import QuietLog
from quorumlog.pb import common_pb2
from quorumlog.pb import nameserver_pb2 as pb
from quorumlog.pb.log_pb2 import GroupRoute, TopicRoute

TIMEOUT_MS: Final = 2_000
POLL_PERIOD_MS_MAX: Final = 2_000
"""What changed elsewhere is known here after it, also when there is nothing to say."""
ANSWER_SIZE_BYTES_MAX: Final = 16 * 1024 * 1024
_REPORT: Final = "/quorumlog.v1.NameServerService/Report"
_CHALLENGE_AGE_S_MAX: Final = CHALLENGE_AGE_MS_MAX / 3_000
"""An older one is not used: the server would refuse it soon."""
_UNPROVEN: Final = "unproven"
_NOT_BELIEVED: Final = {
    UnprovenReportError.code: _UNPROVEN,
    NotVouchedError.code: "not_vouched",
    BadRequestError.code: "bad_request",
}
"""Codes of errors that are answers: this broker is not believed there."""
_DETAIL_SIZE_CHARS_MAX: Final = 1_000
_QUIET_MS: Final = 60_000
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", ANSWER_SIZE_BYTES_MAX),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.enable_retries", 0),
)
_T = TypeVar("_T")
_log: Final = logging.getLogger(__name__)


class _Line:
    """A connection to one server, and how many calls are on it.

    gRPC cancels the calls of a channel that is closed, and whoever waits for one of them would take
    that for his own end. So one that failed is used for nothing new, and closed behind its last
    call."""

    __slots__ = ("call_count", "challenge", "challenged_s", "channel")

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self.call_count = 0
        self.challenge = b""
        """What the server wants a proof about; empty: none, or it is an older one."""
        self.challenged_s: float | None = None
        """When it said so; None: it was not asked yet."""

    def is_challenged(self, now_s: float) -> bool:
        """Whether what it wants proven is new enough to be proven."""
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
    ) -> None:
        """`prover` signs what this node says, where the cluster has a secret."""
        self._servers, self._at = tuple(servers), 0
        assert self._servers, "there is nobody to ask"
        self._group = group
        self._poll_period_s = min(POLL_PERIOD_MS_MAX, poll_period_ms) / 1000
        self._credentials, self._prover = credentials, prover
        self._line: _Line | None = None
        self._quiet = QuietLog(_log, interval_ms=_QUIET_MS, monotonic_s=time.monotonic)
        self._directory = Directory()
        """Of this group only."""
        self._others: dict[str, GroupRoute] = {}
        self._topics: dict[str, tuple[str, dict[str, TopicRoute]]] = {}
        """Of the other groups: version, and topics by name."""
        self.leader = ""
        self.own_problem = ""
        """Why the group of this node has no master, as a server sees it; empty: it has, or nobody
        answers."""
        self.failure_count = 0

    async def run(self) -> None:
        """Keep what is known up to date until cancelled."""
        while True:
            try:
                await self._ask(None, TIMEOUT_MS)
            except NodeError as error:
                self._quiet.warn("no name server answers", str(error))
            await asyncio.sleep(self._poll_period_s)

    async def close(self) -> None:
        """Close the connection; nobody asks any more."""
        line, self._line = self._line, None
        if line is not None:
            await line.channel.close()

    async def change(self, command: Command, *, timeout_ms: int = TIMEOUT_MS) -> Result:
        """Carry out a command and return what was confirmed, or why this node is not believed.

        Raises NoQuorumError (not applied) or ChangeUnknownError.
        """
        result = await self._say(command, timeout_ms)
        if self._prover is not None and result.reason == _UNPROVEN:
            # A server that was started again wants something else proven.
            result = await self._say(command, timeout_ms)
        return result

    async def report(self, command: Command, *, timeout_ms: int = TIMEOUT_MS) -> Result:
        """Carry out a heartbeat; raises as `change`."""
        return await self.change(command, timeout_ms=timeout_ms)

    def look(self, reader: Callable[[Directory], _T]) -> _T:
        """Return what a reader makes of the part of the directory that is this group's."""
        return reader(self._directory)

    def other_groups(self, topics: Iterable[str]) -> list[GroupRoute]:
        """Return the other groups and their shares of topics, as they were last heard of."""
        wanted, found = tuple(topics), []
        for name in sorted(self._others):
            answer = GroupRoute()
            answer.CopyFrom(self._others[name])
            known = self._topics.get(name, ("", {}))[1]
            answer.topics.extend(known[topic] for topic in wanted if topic in known)
            found.append(answer)
        return found

    async def _say(self, command: Command, timeout_ms: int) -> Result:
        if self._prover is not None and not self._connected().is_challenged(time.monotonic()):
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
        if command is not None and self._prover is not None:
            self._prover.seal(request, line.challenge)
        report = line.channel.unary_unary(
            _REPORT,
            request_serializer=pb.ReportRequest.SerializeToString,
            response_deserializer=pb.ReportResponse.FromString,
        )
        line.call_count += 1
        try:
            answer = await report(request, timeout=timeout_ms / 1000)
            line.challenge, line.challenged_s = answer.challenge, time.monotonic()
            return self._learn(answer)
        except grpc.aio.AioRpcError as error:
            self._failed(line)
            if command is not None and (refused := _refusal(error)) is not None:
                return refused
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED and command is not None:
                raise ChangeUnknownError("sent to another process", timeout_ms) from error
            raise NoQuorumError(timeout_ms) from error
        except (Refusal, ValueError) as error:
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
        """Ask the next one from now on."""
        self.failure_count += 1
        if line is self._line:  # Else somebody else has turned to the next one.
            self._at += 1
            self.leader, self.own_problem, self._line = "", "", None

    def _learn(self, answer: pb.ReportResponse) -> Result | None:
        """Keep what an answer says. Raises Refusal or ValueError when it makes no sense."""
        result = Result.restored(read_json(answer.result)) if answer.result else None
        if answer.own_group:
            group = Group.restored(read_json(answer.own_group), self._directory.limits)
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
    """Return what a server said that does not believe this node; None for any other failure."""
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
