"""The rule that decides which reports about brokers are believed, for those over the client port.

Owns the rule, the counts of refused reports, and their log lines. Any process can dial that port,
and clients send messages to the addresses in the directory. So:

- with a secret a report has to prove it (`proofs`), and a node reports on its own group only;
- without a secret a report may only repeat what this process knows: a node of its own group, at the
  address in `peers` or in the group's own log, and no epoch that is new here. (The address of a
  peer link is not compared: operators see it, and no process dials it.) A report that a node leaves
  is refused: the node expires.
- about its own group a process believes only in nodes that it knows, and about itself no report.

A report that reaches the directory through a replica's own port was made by that replica's process.
Must not know how the directory uses a report.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Self, TypeVar

from pydantic import TypeAdapter

from node.config.settings import Settings
from node.errors.common import BadRequestError, NodeError
from node.errors.nameserver import NotVouchedError
from node.nameserver.directory.directory import Command
from node.nameserver.directory.fields import BrokerId, CommandRefused, Number, Result, checked
from node.nameserver.directory.proofs import Challenges
from node.nameserver.directory.reports import Bindings
from node.runtime.logs.rate_limited_log import RateLimitedLog
from quorumlog.foreign_json import read_json
from quorumlog.pb import nameserver_pb2 as pb
from store.files.meta_file import Json

FROM_BROKERS: Final = frozenset({"register", "heartbeat", "unregister", "alter_in_sync"})
"""The commands of brokers; the others are for controllers, which have a replica."""
NO_BROKER: Final = 0
"""The id of no node."""
_TOO_HIGH: Final = frozenset({"epoch_too_high", "version_too_high", "address_taken", "wrong_group"})
"""Refusals of the directory that no healthy broker meets."""
_LOG_INTERVAL_MS: Final = 60_000
_SECRET: Final = "set the same secret_file on all nodes of the cluster"
_ID: Final = TypeAdapter(BrokerId)
_NUMBER: Final = TypeAdapter(Number)
_BINDINGS: Final = TypeAdapter(Bindings)
_T = TypeVar("_T")
_log: Final = logging.getLogger(__name__)


class ReportJudge:
    """Judges the reports of one process. Call all methods on the event loop's thread."""

    def __init__(
        self,
        cluster_id: str,
        group: str,
        secret: bytes = b"",
        *,
        own_id: int = NO_BROKER,
        known: Callable[[], Mapping[int, str]] = dict,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Judge reports for a process of `group`. `own_id` is the broker here; NO_BROKER: the name
        server has its own process. `known` returns the client addresses of the nodes of the group,
        by id; empty if none is set."""
        self.cluster_id: Final = cluster_id
        self._group, self._own_id, self._known = group, own_id, known
        self._challenges = (
            Challenges(secret, cluster_id, monotonic_s=monotonic_s) if secret else None
        )
        self._rate_limited = RateLimitedLog(
            _log, interval_ms=_LOG_INTERVAL_MS, monotonic_s=monotonic_s
        )
        self.refused_counts: dict[str, int] = dict.fromkeys(REASONS, 0)
        """Reports that were not believed, by REASONS."""

    @classmethod
    def of(
        cls,
        settings: Settings,
        members: Callable[[], Mapping[int, tuple[str, str]]] = dict,
        *,
        is_standalone: bool = False,
    ) -> Self:
        """Return the rule of a process. `members` returns the two addresses of each node that the
        group itself decided on; they override the configured ones."""

        def known() -> Mapping[int, str]:
            addresses = {node: str(peer.address) for node, peer in settings.peers.items()}
            for node, (address, _) in members().items():
                addresses[node] = address or addresses.get(node, "")
            return addresses

        own_id = NO_BROKER if is_standalone else settings.node_id
        group = settings.broker_group
        judge = cls(settings.cluster_id, group, settings.secret(), own_id=own_id, known=known)
        judge.renew(settings.secrets())
        if is_standalone and judge._challenges is None and not settings.peers:
            _log.warning("no broker is believed: %s, or peers of one group", _SECRET)
        return judge

    def renew(self, secrets: Sequence[bytes]) -> None:
        """Believe reports that one of these secrets proves."""
        if self._challenges is not None:
            self._challenges.secrets = secrets

    @property
    def refused_count(self) -> int:
        """The count of reports that were not believed, for any reason."""
        return sum(self.refused_counts.values())

    def challenge(self) -> bytes:
        """Return the challenge that the next proof has to answer; empty without a secret."""
        return b"" if self._challenges is None else self._challenges.current()

    def believed(self, request: pb.ReportRequest, highest_epoch: Callable[[], int]) -> Command:
        """Return the command of a report that may be handed to the directory.

        `highest_epoch` returns the highest epoch of its group that this process knows. Raises
        UnprovenReportError, NotVouchedError, BadRequestError or BusyError, counted and logged.
        """
        try:
            if self._challenges is not None:
                self._challenges.check(request)  # Before any of its content is parsed.
            command = _command_of(request.command)
            self._check_speaker(request.group, command)
            if self._challenges is None:
                self._check_settings(request.group, command)
                self._check_epochs(command, highest_epoch)
            return command
        except NodeError as error:
            self._refused(error.code.rpartition(".")[2], str(error))
            raise

    def note(self, result: Result) -> None:
        """Count and log a refusal by the directory that no healthy broker meets."""
        if result.reason in _TOO_HIGH:
            self._refused(result.reason, result.detail)

    def _refused(self, reason: str, text: str) -> None:
        assert reason in self.refused_counts, f"{reason} has no place in the metrics"
        self.refused_counts[reason] += 1
        self._rate_limited.warn(f"a report was refused ({reason})", text)

    def _check_speaker(self, group: str, command: Command) -> None:
        """Raise NotVouchedError unless the sender reports on its own group, and on a known node
        other than this one if that is the group of this process; the cluster must match."""
        named = command.get("group")
        if named != group:
            problem = f"of a node of broker group {group!r} is about broker group {named!r:.80}"
            raise NotVouchedError(problem, "a node speaks for its own group only")
        cluster = command.get("cluster", self.cluster_id)
        if cluster != self.cluster_id:
            problem = f"is of cluster {cluster!r:.80}, and this is {self.cluster_id!r}"
            raise NotVouchedError(problem, "correct nameserver_servers or cluster_id")
        broker_id, members = _broker_id(command), self._known()
        if group != self._group or (self._own_id == NO_BROKER and not members):
            return
        if broker_id == self._own_id:
            problem = f"is about node {broker_id}, which is this one"
            raise NotVouchedError(problem, "it speaks for itself; correct node_id of the other")
        if broker_id not in members:
            problem = f"is about node {broker_id}, no member of broker group {group!r} here"
            remedy = "add it with 'qlog cluster members add', or to peers"
            raise NotVouchedError(problem, remedy)

    def _check_settings(self, group: str, command: Command) -> None:
        """Raise NotVouchedError for a report without a proof that does not repeat known facts."""
        broker_id = _broker_id(command)
        address = self._known().get(broker_id) if group == self._group else None
        if not address:
            problem = f"is about node {broker_id} of broker group {group!r}; no node vouches for it"
            remedy = f"{_SECRET}: without one only the peers of {self._group!r} are believed"
            raise NotVouchedError(problem, remedy)
        if command["op"] == "unregister":
            problem = f"without a proof takes node {broker_id} out"
            raise NotVouchedError(problem, f"wait until it expires; {_SECRET}")
        if command["op"] == "register" and command.get("address") != address:
            said = command.get("address")
            problem = f"has node {broker_id} at {said!r:.200}, and peers has it at {address}"
            raise NotVouchedError(problem, f"make them the same, or {_SECRET}")

    def _check_epochs(self, command: Command, highest_epoch: Callable[[], int]) -> None:
        """Raise NotVouchedError for an unproven epoch that this process does not know.

        The group itself makes each epoch known to its nodes, so no stranger has to report one.
        """
        if self._own_id == NO_BROKER or command["op"] not in ("register", "heartbeat"):
            return
        said = max(_numbers(command), default=0)
        highest = highest_epoch() if said else 0
        if said > highest:
            problem = f"names epoch {said}, and the highest known here is {highest}"
            raise NotVouchedError(problem, f"wait until this node has heard of it, or {_SECRET}")


REASONS: Final = ("unproven", "not_vouched", "bad_request", "busy", *sorted(_TOO_HIGH))
"""The reasons to refuse a report, as labels of metrics."""


def _command_of(encoded: bytes) -> Command:
    """Read a command that a node may send. Raises BadRequestError."""
    try:
        command = read_json(encoded)
    except ValueError as error:
        raise BadRequestError("command", "JSON", f"{len(encoded)} other bytes") from error
    if not isinstance(command, dict) or str(command.get("op")) not in FROM_BROKERS:
        expected = f"one of {', '.join(sorted(FROM_BROKERS))}"
        raise BadRequestError("command", expected, repr(encoded[:64]))
    return command


def _broker_id(command: Command) -> int:
    name = "requester" if command["op"] == "alter_in_sync" else "broker_id"
    return _read(_ID, command.get(name), name)


def _numbers(command: Command) -> list[int]:
    """Return the epochs that a report names."""
    bindings = _read(_BINDINGS, command.get("bindings", {}), "bindings")
    return [_read(_NUMBER, command.get("epoch"), "epoch"), *bindings]


def _read(adapter: TypeAdapter[_T], value: Json, name: str) -> _T:
    """Read a field as the directory reads it. Raises BadRequestError."""
    try:
        return checked(adapter, value)
    except CommandRefused as refusal:
        raise BadRequestError(name, refusal.detail, repr(value)[:64]) from None
