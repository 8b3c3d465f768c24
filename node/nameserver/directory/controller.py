"""The controller's decisions: the next master, the in-sync set, and the brokers that have expired.

Owns pure functions from the directory, a time and a caller's measurements to the commands that the
caller should send. Every command is compare-and-set, so two controllers that decide at once cannot
both succeed. All decisions are advice: a proposed master has to fence before it serves (rule C3),
and brokers refuse an epoch number that they have bound to another master (rule C2). Must not know
PySyncObj, asyncio or a clock.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from node.nameserver.directory.directory import (
    Command,
    Directory,
    forget_group_command,
    unregister_command,
)
from node.nameserver.directory.groups import Group, RegisteredBroker
from node.nameserver.directory.routes import alive_brokers

FENCE_GRACE_MS: Final = 3_000
"""How long a proposed master may take to fence and to register before another one is proposed."""
CATCH_UP_MS_MAX: Final = 15_000
"""Time without catching up after which a replica leaves the in-sync set; RocketMQ's number."""


@dataclass(frozen=True, slots=True)
class ReplicaAck:
    """The state of one replica as its master knows it."""

    position: int
    """The position up to which the replica has acknowledged."""
    caught_up_ms: int
    """The time at which the replica last had the master's whole log."""


class FailoverWatch:
    """The time since which each HA group waits for its next master, as this controller saw it.

    The leader keeps it, and does not replicate it: a new leader waits once more, which is harmless.
    """

    def __init__(self) -> None:
        self._pending: dict[str, tuple[int, int]] = {}
        """By group: the highest epoch, which no master serves yet, and the time since then."""

    def commands(self, directory: Directory, now_ms: int, nonce: str) -> list[Command]:
        """Return the commands to send now: removals first, then a master for each group without.

        A group with numbers that none of its brokers reports (`is_unfounded`) is forgotten instead:
        its brokers register again with their own numbers, and then it can be given a master.
        """
        advice: list[Command] = []
        for group, broker in expired(directory, now_ms):
            advice.append(unregister_command(group.name, broker.broker_id, broker.start_ms))
        for name in sorted(directory.groups):
            group = directory.groups[name]
            if group.is_unfounded(directory.limits):
                advice.append(forget_group_command(name, group.epoch_highest))
                continue
            if group.kind != "ha" or self._must_wait(group, now_ms):
                continue
            if group.is_exhausted(directory.limits):
                continue  # `watch` reports it.
            silence_ms = directory.limits.master_silence_ms
            command = propose_master(group, now_ms, silence_ms, nonce)
            if command is not None:
                advice.append(command)
        self._pending = {
            name: pending for name, pending in self._pending.items() if name in directory.groups
        }
        return advice

    def _must_wait(self, group: Group, now_ms: int) -> bool:
        """Whether a master was proposed a moment ago and may be fencing."""
        if not group.is_unserved:
            self._pending.pop(group.name, None)
            return False
        number, since_ms = self._pending.get(group.name, (0, 0))
        # A clock that was set back must not make the wait longer.
        if number != group.epoch_highest or now_ms < since_ms:
            number, since_ms = self._pending[group.name] = (group.epoch_highest, now_ms)
        return now_ms - since_ms < FENCE_GRACE_MS


def expired(directory: Directory, now_ms: int) -> list[tuple[Group, RegisteredBroker]]:
    """Return the brokers that have been silent for too long."""
    silence_ms = directory.limits.broker_expiry_ms
    return [
        (group, broker)
        for group in directory.groups.values()
        for broker in group.brokers.values()
        if not broker.is_alive(now_ms, silence_ms)
    ]


def has_master(group: Group, now_ms: int, silence_ms: int) -> bool:
    """Whether the master of the highest epoch was seen in the last `silence_ms`."""
    master = group.brokers.get(group.master_id)
    if master is None or group.is_unserved:
        return False
    return master.is_alive(now_ms, silence_ms)


def propose_master(group: Group, now_ms: int, silence_ms: int, nonce: str) -> Command | None:
    """Return the command that gives the next epoch to the best replica; None when none is due.

    A group that never had an epoch gets none here: its first master is the one configured.
    """
    if group.epoch_highest == 0 or has_master(group, now_ms, silence_ms):
        return None
    candidates = alive_brokers(group, now_ms, silence_ms)
    if not candidates:
        return None
    failed = group.epochs.get(group.epoch_highest) if group.is_unserved else None
    if failed is not None:
        # A broker that was proposed and did not serve may be cut off from the others.
        others = [broker for broker in candidates if broker.broker_id != failed.master_id]
        candidates = tuple(others) or candidates
    best = max(candidates, key=lambda broker: _merit(group, broker))
    return elect_command(group, best.broker_id, nonce)


def elect_command(group: Group, broker_id: int, nonce: str) -> Command:
    """Return the command that gives the next epoch number to a broker; also by hand."""
    return {
        "op": "elect",
        "group": group.name,
        "number": group.epoch_highest + 1,
        "master_id": broker_id,
        "nonce": nonce,
        "expected_epoch": group.epoch_highest,
        "expected_version": group.in_sync_version,
    }


def change_in_sync(
    group: Group,
    master_id: int,
    replicas: Mapping[int, ReplicaAck],
    *,
    confirmed_position: int,
    epoch_start_position: int,
    now_ms: int,
) -> Command | None:
    """Return the command for the master's next in-sync set; None when the set is right as it is.

    A replica that fell behind leaves, unless fewer than the copies of an ack would remain; a
    replica that has all confirmed entries, of this epoch too, joins.
    """
    if group.master_id != master_id or group.master_epoch != group.epoch_highest:
        return None
    stays, lagging = {master_id}, []
    for broker_id in group.in_sync:
        replica = replicas.get(broker_id)
        if broker_id == master_id:
            continue
        if replica is not None and now_ms - replica.caught_up_ms <= CATCH_UP_MS_MAX:
            stays.add(broker_id)
        else:
            lagging.append(broker_id)
    for broker_id, replica in replicas.items():
        is_level = replica.position >= max(confirmed_position, epoch_start_position)
        is_recent = now_ms - replica.caught_up_ms <= CATCH_UP_MS_MAX
        if broker_id in group.brokers and is_level and is_recent:
            stays.add(broker_id)
    while lagging and len(stays) < group.copy_count:
        stays.add(lagging.pop(0))
    if tuple(sorted(stays)) == group.in_sync:
        return None
    return {
        "op": "alter_in_sync",
        "group": group.name,
        "requester": master_id,
        "members": [*sorted(stays)],
        "expected_epoch": group.epoch_highest,
        "expected_version": group.in_sync_version,
    }


def _merit(group: Group, broker: RegisteredBroker) -> tuple[bool, int, int, int]:
    """Return the rank of a candidate, larger is better: being in sync first, then the log's end.

    The rank is only a preference: the fence finds the longest log among n-k+1 replicas for any
    proposed master.
    """
    is_in_sync = broker.broker_id in group.in_sync
    return (is_in_sync, *broker.log_end, -broker.broker_id)
