"""The replicated state of the name server: a pure, deterministic machine.

Owns the table of commands, the groups, the key-value configuration and the results of the last
commands. `apply` is total: for any bytes it answers accepted, or refused with a reason, changes the
state in the first case only, and does the same on every replica. Must not know PySyncObj, files,
sockets or a clock.

Results are kept for a while, by the command's id. So a caller can read back the result of a command
whose answer got lost (rule C4), and a command that is sent twice is carried out once.
"""

import json
from collections.abc import Callable, Mapping
from typing import Final

from node.nameserver.directory.fields import (
    CommandRefused,
    Result,
    a_broker_id,
    a_list,
    a_text,
    an_integer,
    an_object,
    exactly,
    ids,
)
from node.nameserver.directory.groups import Group
from node.nameserver.directory.limits import DirectoryLimits
from node.nameserver.directory.reports import Binding, BrokerReport, parse_log_end, parse_report
from quorumlog.foreign_json import read_json
from store.files.meta_file import Json

COMMAND_SIZE_BYTES_MAX: Final = 2 * 1024 * 1024
"""A full report of all topics that fit, with room."""
SNAPSHOT_VERSION: Final = 1
ID_SIZE_CHARS_MAX: Final = 64
CHANGES_OF_VALUES: Final = frozenset({"put_pair", "delete_pair"})
_PAIR_COST_BYTES: Final = 48
PAIR_SIZE_BYTES_MAX: Final = 20 * 1024
"""More than the largest pair, with characters of 4 bytes."""

Command = Mapping[str, Json]


class Directory:
    """The state. One thread at a time."""

    def __init__(self, limits: DirectoryLimits | None = None) -> None:
        self.limits = limits or DirectoryLimits()
        self.groups: dict[str, Group] = {}
        self.pairs: dict[str, dict[str, str]] = {}
        """The key-value configuration: namespace, key, value."""
        self._results: dict[str, Result] = {}
        self._methods: dict[str, Callable[[Command], dict[str, Json]]] = {
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
            key = a_text(command.get("id"), "id", ID_SIZE_CHARS_MAX, may_be_empty=False)
        except CommandRefused as refusal:
            return refusal.result()
        if command.get("op") == "read_back":
            return self.result_of(key)
        if (known := self._results.get(key)) is not None:
            return known
        try:
            method = self._methods.get(str(command.get("op")))
            if method is None:
                raise CommandRefused("unknown_command", "there is no such command")
            result = Result(True, values=method(command))
        except CommandRefused as refusal:
            result = refusal.result()
        self._results[key] = result
        if len(self._results) > self.limits.result_count_max:
            del self._results[next(iter(self._results))]
        return result

    def result_of(self, key: str) -> Result:
        """Return the result of a command; refused with `not_found` if it is not known."""
        found = self._results.get(key)
        if found is None:
            return Result(False, "not_found", "no command of this id was applied lately")
        return found

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

    def group(self, name: Json) -> Group:
        """Return a group. Raises Refusal."""
        found = self.groups.get(name) if isinstance(name, str) else None
        if found is None:
            raise CommandRefused("unknown_broker", "there is no such group; register first")
        return found

    def _register(self, command: Command) -> dict[str, Json]:
        report = parse_report(command, self.limits)
        self._check_address(report)
        known = self.groups.get(report.group)
        if known is not None and not known.brokers:
            # No broker of the group is registered, so its first report may have been wrong.
            is_same = (known.cluster, known.kind) == (report.cluster, report.kind)
            known = known if is_same else None
        left_out = self._left_out_for(report.group)
        before = known.topics_size_bytes if known is not None else 0
        growth, limit = report.topics_size_bytes - before, self.limits.topics_size_bytes_max
        _check_room("topics", self.topics_size_bytes, growth, limit)
        group = known or Group(report.group, report.cluster, report.kind)
        values = group.register(report, self.limits)
        if left_out is not None:
            del self.groups[left_out]
        self.groups[report.group] = group
        return values

    def _check_address(self, report: BrokerReport) -> None:
        """Raise Refusal if a broker of another group has the address: calls of one group would
        reach the other."""
        for group in self.groups.values():
            for broker in group.brokers.values() if group.name != report.group else ():
                if broker.address == report.address:
                    raise CommandRefused(
                        "address_taken",
                        f"{report.address} is that of broker {broker.broker_id} of {group.name}",
                    )

    def _left_out_for(self, name: str) -> str | None:
        """Return a group without brokers that makes room for group `name`; None if there is room.

        Raises Refusal if every group has brokers.
        """
        if name in self.groups or len(self.groups) < self.limits.group_count_max:
            return None
        for other in sorted(self.groups):
            if not self.groups[other].brokers:
                return other
        raise CommandRefused("too_many_groups", f"at most {self.limits.group_count_max} groups")

    def _heartbeat(self, command: Command) -> dict[str, Json]:
        self.group(command.get("group")).heartbeat(
            *_process(command),
            an_integer(command.get("now_ms"), "now_ms"),
            an_integer(command.get("epoch"), "epoch"),
            parse_log_end(command.get("log_end")),
            self.limits,
        )
        return {}

    def _unregister(self, command: Command) -> dict[str, Json]:
        group = self.group(command.get("group"))
        group.unregister(*_process(command))
        self._forget_if_empty(group)
        return {}

    def _forget_group(self, command: Command) -> dict[str, Json]:
        group = self.group(command.get("group"))
        if an_integer(command.get("expected_epoch"), "expected_epoch") != group.epoch_highest:
            raise CommandRefused(
                "changed", f"{group.epoch_highest} is the highest epoch: look again"
            )
        if not group.is_unfounded(self.limits):
            raise CommandRefused(
                "founded", f"brokers of {group.name} report epochs near its highest"
            )
        del self.groups[group.name]
        return {}

    def _elect(self, command: Command) -> dict[str, Json]:
        names = self.limits.name_size_chars_max
        nonce = a_text(command.get("nonce"), "nonce", names, may_be_empty=False)
        number = an_integer(command.get("number"), "number", 1)
        binding = Binding(a_broker_id(command.get("master_id"), "master_id"), nonce)
        group = self.group(command.get("group"))
        group.elect(number, binding, _expected(command), self.limits)
        return {"number": number, "master_id": binding.master_id, "nonce": nonce}

    def _alter_in_sync(self, command: Command) -> dict[str, Json]:
        version = self.group(command.get("group")).alter_in_sync(
            a_broker_id(command.get("requester"), "requester"),
            ids(command.get("members"), "members", self.limits.broker_count_max),
            _expected(command),
            self.limits,
        )
        return {"in_sync_version": version}

    def _put_pair(self, command: Command) -> dict[str, Json]:
        namespace, key = self._pair_key(command)
        value = a_text(command.get("value"), "value", self.limits.value_size_chars_max)
        before = self.pairs.get(namespace, {}).get(key)
        self._check_pair(command, before)
        growth = pair_size_bytes(namespace, key, value)
        if before is not None:
            growth -= pair_size_bytes(namespace, key, before)
        limit = self.limits.pairs_size_bytes_max
        _check_room("values", self.pairs_size_bytes, growth, limit)
        self.pairs.setdefault(namespace, {})[key] = value
        return {}

    def _delete_pair(self, command: Command) -> dict[str, Json]:
        namespace, key = self._pair_key(command)
        before = self.pairs.get(namespace, {}).get(key)
        self._check_pair(command, before)
        if before is None:
            raise CommandRefused("unknown_key", "there is no such key")
        del self.pairs[namespace][key]
        if not self.pairs[namespace]:
            del self.pairs[namespace]
        return {}

    def _pair_key(self, command: Command) -> tuple[str, str]:
        names = self.limits.name_size_chars_max
        namespace = a_text(command.get("namespace"), "namespace", names, may_be_empty=False)
        return namespace, a_text(command.get("key"), "key", names, may_be_empty=False)

    def _check_pair(self, command: Command, before: str | None) -> None:
        """Raise Refusal if the value is not the `expected` one; RocketMQ's commands name none."""
        if "expected" in command and command["expected"] != before:
            # Without the value: results are kept, and have no limit of bytes.
            raise CommandRefused("changed", "the value is another one by now: look again")

    def _forget_if_empty(self, group: Group) -> None:
        if not group.must_be_remembered:
            self.groups.pop(group.name, None)

    def snapshot(self) -> dict[str, Json]:
        """Return the whole state as JSON."""
        return {
            "version": SNAPSHOT_VERSION,
            "groups": [self.groups[name].snapshot() for name in sorted(self.groups)],
            "pairs": {
                name: {key: keys[key] for key in sorted(keys)}
                for name, keys in sorted(self.pairs.items())
            },
            "results": [[key, *result.snapshot()] for key, result in self._results.items()],
        }

    def restore(self, state: Json) -> None:
        """Take the state that `snapshot` returned. Raises Refusal for any other value, and is then
        unchanged."""
        of = an_object(state, "snapshot")
        an_integer(of.get("version"), "version", SNAPSHOT_VERSION, SNAPSHOT_VERSION)
        listed = a_list(of.get("groups"), "groups", self.limits.group_count_max)
        groups = [Group.restored(group, self.limits) for group in listed]
        pairs = {
            namespace: {
                key: a_text(value, "value", self.limits.value_size_chars_max)
                for key, value in an_object(keys, "pairs").items()
            }
            for namespace, keys in an_object(of.get("pairs"), "pairs").items()
        }
        results: dict[str, Result] = {}
        for entry in a_list(of.get("results"), "results", self.limits.result_count_max):
            key, *rest = exactly(entry, "result", 5)
            results[a_text(key, "id", ID_SIZE_CHARS_MAX)] = Result.restored(rest)
        self.groups = {group.name: group for group in groups}
        self.pairs, self._results = pairs, results


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


def _decoded(encoded: bytes) -> Command:
    if len(encoded) > COMMAND_SIZE_BYTES_MAX:
        raise CommandRefused("too_large", f"a command has at most {COMMAND_SIZE_BYTES_MAX} bytes")
    try:
        found = read_json(encoded)
    except ValueError:
        raise CommandRefused("malformed", "the command is not JSON") from None
    return an_object(found, "command")


def _process(command: Command) -> tuple[int, int]:
    broker_id = a_broker_id(command.get("broker_id"), "broker_id")
    return broker_id, an_integer(command.get("start_ms"), "start_ms")


def _expected(command: Command) -> tuple[int, int]:
    number = an_integer(command.get("expected_epoch"), "expected_epoch")
    return number, an_integer(command.get("expected_version"), "expected_version")
