"""Reports of brokers for tests of the name server."""

from itertools import count
from typing import Any

from node.nameserver.directory.directory import Command, Directory, encoded_command
from node.nameserver.directory.fields import Result
from node.nameserver.directory.reports import Binding, BrokerReport, LogEnd, TopicQueues

NOW_MS = 1_700_000_000_000
ORDERS = {"orders": TopicQueues(4, 4, 6)}
_keys = count()


def ha_report(broker_id: int, **changes: Any) -> BrokerReport:
    """A broker of the HA group `ha`: a slave, unless said otherwise. Each group has a host."""
    host = changes.get("group", "ha")
    fields: dict[str, Any] = {
        "cluster": "c",
        "group": "ha",
        "kind": "ha",
        "broker_id": broker_id,
        "start_ms": 1,
        "address": f"{host}:{10000 + broker_id}",
        "now_ms": NOW_MS,
        "ha_address": f"{host}:{20000 + broker_id}",
        "copy_count": 2,
    }
    return BrokerReport(**{**fields, **changes})


def raft_report(broker_id: int, group: str = "raft", **changes: Any) -> BrokerReport:
    """A broker of a Raft group: a follower, unless said otherwise."""
    return ha_report(
        broker_id, **{"group": group, "kind": "raft", "ha_address": "", "copy_count": 1, **changes}
    )


def ha_master(broker_id: int, epoch: int = 1, nonce: str = "n1", **changes: Any) -> BrokerReport:
    """The master of an epoch, with topics."""
    own = {"bindings": {epoch: Binding(broker_id, nonce)}, "log_end": LogEnd(epoch, 100)}
    return ha_report(broker_id, **{**_leading(epoch), **own, **changes})


def raft_leader(broker_id: int, term: int, group: str = "raft", **changes: Any) -> BrokerReport:
    """The leader of a term, with topics."""
    return raft_report(broker_id, group, **{**_leading(term), **changes})


def _leading(epoch: int) -> dict[str, Any]:
    return {"role": "master", "epoch": epoch, "topics": ORDERS, "topics_version": (5, 1)}


def send(directory: Directory, said: Command | BrokerReport, key: str | None = None) -> Result:
    """Apply a command, or that of a report, under an id of its own."""
    command = said.command() if isinstance(said, BrokerReport) else said
    return directory.apply(encoded_command(command, key or f"k{next(_keys)}"))


def accepted(directory: Directory, said: Command | BrokerReport) -> Result:
    """Apply what must be accepted."""
    result = send(directory, said)
    assert result.is_accepted, result
    return result


def refused(directory: Directory, said: Command | BrokerReport, reason: str) -> Result:
    """Apply what must be refused, and change nothing."""
    before = state_of(directory)
    result = send(directory, said)
    assert (result.is_accepted, result.reason) == (False, reason)
    assert state_of(directory) == before
    return result


def state_of(directory: Directory) -> dict[str, Any]:
    """The state without the results of commands, whose ids are random."""
    return {**directory.snapshot(), "results": {}}


def elect(number: int, master_id: int, expected: tuple[int, int], nonce: str = "x") -> Command:
    """The command that gives an epoch of the group `ha` away."""
    return {
        "op": "elect",
        "group": "ha",
        "number": number,
        "master_id": master_id,
        "nonce": nonce,
        "expected_epoch": expected[0],
        "expected_version": expected[1],
    }


def alter(requester: int, members: list[int], expected: tuple[int, int]) -> Command:
    """The command that changes the in-sync set of the group `ha`."""
    return {
        "op": "alter_in_sync",
        "group": "ha",
        "requester": requester,
        "members": [*members],
        "expected_epoch": expected[0],
        "expected_version": expected[1],
    }


def ha_directory() -> Directory:
    """Three brokers, 1 is the master of epoch 1 with everybody in sync at version 3."""
    directory = Directory()
    for broker_id in (2, 3):
        accepted(directory, ha_report(broker_id, log_end=LogEnd(1, 90)))
    master = ha_master(1, in_sync=(1, 2, 3), in_sync_version=3)
    accepted(directory, master)
    return directory
