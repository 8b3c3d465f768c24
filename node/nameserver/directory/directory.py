"""The replicated state of the name server: a pure, deterministic machine.

Owns the commands, the groups, the key-value configuration and the results of the last commands. A
command is a method whose parameters pydantic reads; a field of a later build is ignored. `apply` is
total: for any bytes it answers accepted, or refused with a reason, changes the state in the first
case only, and does the same on every replica. Must not know PySyncObj, files, sockets or a clock.

Results are kept for a while, by the command's id. So a caller can read back the result of a command
whose answer got lost (rule C4), and a command that is sent twice is carried out once.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import Field, TypeAdapter, ValidationError, validate_call

from node.nameserver.directory.fields import (
    BrokerId,
    BrokerIds,
    CommandRefused,
    Name,
    Number,
    Result,
    Value,
    checked,
    malformed,
)
from node.nameserver.directory.groups import Group
from node.nameserver.directory.limits import DirectoryLimits
from node.nameserver.directory.reports import Binding, BrokerReport, LogEnd
from quorumlog.foreign_json import read_json
from store.files.meta_file import Json

COMMAND_SIZE_BYTES_MAX: Final = 2 * 1024 * 1024
"""A full report of all topics that fit, with room."""
CHANGES_OF_VALUES: Final = frozenset({"put_pair", "delete_pair"})
_PAIR_COST_BYTES: Final = 48
PAIR_SIZE_BYTES_MAX: Final = 20 * 1024
"""More than the largest pair, with characters of 4 bytes."""

ANY_VALUE: Final = "\0"
"""Stands for the expected value of a change that expects none, as RocketMQ's; no value is it."""

Command = Mapping[str, Json]
Values = dict[str, Json]
_KEY: Final = TypeAdapter(Annotated[Name, Field(max_length=64)])
_REPORT: Final = TypeAdapter(BrokerReport)


@dataclass(frozen=True, slots=True)
class DirectoryImage:
    """The replicated state as a snapshot has it."""

    version: Literal[1]
    groups: Annotated[dict[Name, Group], Field(max_length=DirectoryLimits().group_count_max)]
    pairs: dict[Name, dict[Name, Value]]
    results: Annotated[dict[Name, Result], Field(max_length=DirectoryLimits().result_count_max)]
    """By the id of the command, the oldest first."""


_IMAGE: Final = TypeAdapter(DirectoryImage)


class Directory:
    """The state. One thread at a time."""

    def __init__(self, limits: DirectoryLimits | None = None) -> None:
        self.limits = limits or DirectoryLimits()
        self.groups: dict[str, Group] = {}
        self.pairs: dict[str, dict[str, str]] = {}
        """The key-value configuration: namespace, key, value."""
        self._results: dict[str, Result] = {}
        self._methods: dict[str, Callable[..., Values]] = {
            "register": self._register,
            "heartbeat": self._heartbeat,
            "unregister": self._unregister,
            "forget_group": self._forget_group,
            "elect": self._elect,
            "alter_in_sync": self._alter_in_sync,
            "put_pair": self._put_pair,
            "delete_pair": self._delete_pair,
        }

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Directory) and self.snapshot() == other.snapshot()

    __hash__ = None  # type: ignore[assignment]

    def apply(self, encoded: bytes) -> Result:
        """Carry out a command. Raises no error for any bytes."""
        try:
            command = _decoded(encoded)
            key, operation = checked(_KEY, command.pop("id", None)), command.pop("op", None)
        except CommandRefused as refusal:
            return refusal.result()
        if operation == "read_back":
            return self.result_of(key)
        if (earlier := self._results.get(key)) is not None:
            return earlier
        try:
            method = self._methods.get(str(operation))
            if method is None:
                raise CommandRefused("unknown_command", "there is no such command")
            result = Result(True, values=method(**command))
        except ValidationError as error:
            result = malformed(error).result()
        except CommandRefused as refusal:
            result = refusal.result()
        self._results[key] = result
        if len(self._results) > self.limits.result_count_max:
            del self._results[next(iter(self._results))]
        return result

    def result_of(self, key: str) -> Result:
        """Return the result of a command; refused with `not_found` if it is not known."""
        result = self._results.get(key)
        if result is None:
            return Result(False, "not_found", "no command of this id was applied lately")
        return result

    @property
    def topics_size_bytes(self) -> int:
        """The size of the topics of all groups, as it counts towards their limit."""
        return sum(group.topics_size_bytes for group in self.groups.values())

    @property
    def pairs_size_bytes(self) -> int:
        """The size of all pairs, as it counts towards their limit."""
        return sum(
            pair_size_bytes(namespace, key, value)
            for namespace, keys in self.pairs.items()
            for key, value in keys.items()
        )

    @property
    def size_bytes(self) -> int:
        """The size of topics and pairs."""
        return self.topics_size_bytes + self.pairs_size_bytes

    def group(self, name: str) -> Group:
        """Return a group. Raises CommandRefused."""
        if name not in self.groups:
            raise CommandRefused("unknown_broker", "there is no such group; register first")
        return self.groups[name]

    def _register(self, /, **fields: Json) -> Values:
        report = checked(_REPORT, fields)
        self._check_address(report)
        registered = self.groups.get(report.group)
        if registered is not None and not registered.brokers:
            # No broker of the group is registered, so its first report may have been wrong.
            is_same = (registered.cluster, registered.kind) == (report.cluster, report.kind)
            registered = registered if is_same else None
        left_out = self._left_out_for(report.group)
        before = registered.topics_size_bytes if registered is not None else 0
        growth, limit = report.topics_size_bytes - before, self.limits.topics_size_bytes_max
        _check_room("topics", self.topics_size_bytes, growth, limit)
        group = registered or Group(report.group, report.cluster, report.kind)
        values = group.register(report, self.limits)
        if left_out is not None:
            del self.groups[left_out]
        self.groups[report.group] = group
        return values

    def _check_address(self, report: BrokerReport) -> None:
        """Raise CommandRefused if a broker of another group has the address: calls of one group
        would reach the other."""
        for group in self.groups.values():
            for broker in group.brokers.values() if group.name != report.group else ():
                if broker.address == report.address:
                    raise CommandRefused(
                        "address_taken",
                        f"{report.address} is that of broker {broker.broker_id} of {group.name}",
                    )

    def _left_out_for(self, name: str) -> str | None:
        """Return a group without brokers that makes room for group `name`; None if there is room.

        Raises CommandRefused if every group has brokers.
        """
        if name in self.groups or len(self.groups) < self.limits.group_count_max:
            return None
        for other in sorted(self.groups):
            if not self.groups[other].brokers:
                return other
        raise CommandRefused("too_many_groups", f"at most {self.limits.group_count_max} groups")

    @validate_call
    def _heartbeat(
        self,
        group: Name,
        broker_id: BrokerId,
        start_ms: Number,
        now_ms: Number,
        epoch: Number,
        log_end: LogEnd,
        **_: Any,
    ) -> Values:
        self.group(group).heartbeat(broker_id, start_ms, now_ms, epoch, log_end, self.limits)
        return {}

    @validate_call
    def _unregister(self, group: Name, broker_id: BrokerId, start_ms: Number, **_: Any) -> Values:
        left = self.group(group)
        left.unregister(broker_id, start_ms)
        # Else its numbers would be given out again.
        if not left.brokers and (left.kind != "ha" or left.epoch_highest <= 0):
            del self.groups[left.name]
        return {}

    @validate_call
    def _forget_group(self, group: Name, expected_epoch: Number, **_: Any) -> Values:
        unfounded = self.group(group)
        highest = unfounded.epoch_highest
        if expected_epoch != highest:
            raise CommandRefused("changed", f"{highest} is the highest epoch: look again")
        if not unfounded.is_unfounded(self.limits):
            raise CommandRefused("founded", f"brokers of {group} report epochs near its highest")
        del self.groups[group]
        return {}

    @validate_call
    def _elect(
        self,
        group: Name,
        number: Annotated[Number, Field(ge=1)],
        master_id: BrokerId,
        nonce: Name,
        expected_epoch: Number,
        expected_version: Number,
        **_: Any,
    ) -> Values:
        expected = expected_epoch, expected_version
        self.group(group).elect(number, Binding(master_id, nonce), expected, self.limits)
        return {"number": number, "master_id": master_id, "nonce": nonce}

    @validate_call
    def _alter_in_sync(
        self,
        group: Name,
        requester: BrokerId,
        members: BrokerIds,
        expected_epoch: Number,
        expected_version: Number,
        **_: Any,
    ) -> Values:
        expected = expected_epoch, expected_version
        version = self.group(group).alter_in_sync(requester, members, expected, self.limits)
        return {"in_sync_version": version}

    @validate_call
    def _put_pair(
        self, namespace: Name, key: Name, value: Value, expected: str | None = ANY_VALUE, **_: Any
    ) -> Values:
        before = self._pair(namespace, key, expected)
        growth = pair_size_bytes(namespace, key, value)
        if before is not None:
            growth -= pair_size_bytes(namespace, key, before)
        limit = self.limits.pairs_size_bytes_max
        _check_room("values", self.pairs_size_bytes, growth, limit)
        self.pairs.setdefault(namespace, {})[key] = value
        return {}

    @validate_call
    def _delete_pair(
        self, namespace: Name, key: Name, expected: str | None = ANY_VALUE, **_: Any
    ) -> Values:
        if self._pair(namespace, key, expected) is None:
            raise CommandRefused("unknown_key", "there is no such key")
        del self.pairs[namespace][key]
        if not self.pairs[namespace]:
            del self.pairs[namespace]
        return {}

    def _pair(self, namespace: str, key: str, expected: str | None) -> str | None:
        """Return the value, None for none; raise CommandRefused if it is not the expected one."""
        before = self.pairs.get(namespace, {}).get(key)
        if expected not in (ANY_VALUE, before):
            # Without the value: results are kept, and have no limit of bytes.
            raise CommandRefused("changed", "the value is another one by now: look again")
        return before

    def snapshot(self) -> dict[str, Any]:
        """Return the whole state as JSON."""
        image = DirectoryImage(1, self.groups, self.pairs, self._results)
        state: dict[str, Any] = _IMAGE.dump_python(image, mode="json")
        return state

    def restore(self, state: Json) -> None:
        """Take the state that `snapshot` returned. Raises CommandRefused for any other value, and
        is then unchanged."""
        image = checked(_IMAGE, state)
        self.groups, self.pairs, self._results = image.groups, image.pairs, image.results


def encoded_command(command: Command, key: str) -> bytes:
    """Return a command in the form of the log, with its unique id."""
    text = json.dumps({**command, "id": key}, sort_keys=True, separators=(",", ":"))
    return text.encode()


def unregister_command(group: str, broker_id: int, start_ms: int) -> dict[str, Json]:
    """Return the command that forgets a stopping broker."""
    return {"op": "unregister", "group": group, "broker_id": broker_id, "start_ms": start_ms}


def forget_group_command(group: str, epoch_highest: int) -> dict[str, Json]:
    """Return the command that forgets a group with unfounded numbers (`Group.is_unfounded`)."""
    return {"op": "forget_group", "group": group, "expected_epoch": epoch_highest}


def read_back_command() -> dict[str, Json]:
    """Return the command that changes no state and answers the result of the command of its id."""
    return {"op": "read_back"}


def put_pair_command(namespace: str, key: str, value: str) -> dict[str, Json]:
    """Return RocketMQ's unconditional change of a pair; add `expected` for compare-and-set."""
    return {"op": "put_pair", "namespace": namespace, "key": key, "value": value}


def delete_pair_command(namespace: str, key: str) -> dict[str, Json]:
    """Return the command that removes a pair."""
    return {"op": "delete_pair", "namespace": namespace, "key": key}


def pair_size_bytes(namespace: str, key: str, value: str) -> int:
    """Return the size of a pair as the directory counts it."""
    return len(f"{namespace}{key}{value}".encode()) + _PAIR_COST_BYTES


def _check_room(what: str, held_bytes: int, growth_bytes: int, limit_bytes: int) -> None:
    if growth_bytes > 0 and held_bytes + growth_bytes > limit_bytes:
        raise CommandRefused("state_full", f"{what} would need more than {limit_bytes} bytes")


def _decoded(encoded: bytes) -> dict[str, Json]:
    if len(encoded) > COMMAND_SIZE_BYTES_MAX:
        raise CommandRefused("too_large", f"a command has at most {COMMAND_SIZE_BYTES_MAX} bytes")
    try:
        command = read_json(encoded)
    except ValueError:
        raise CommandRefused("malformed", "the command is not JSON") from None
    if not isinstance(command, dict):
        raise CommandRefused("malformed", "a command must be an object")
    return command
