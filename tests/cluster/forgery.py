"""A stranger at the client port of real nodes, who reports brokers to the name server.

Owns the reports that a stranger can make up from what any client is told. Must not use a secret.
"""

import json
import time
from collections.abc import Mapping
from typing import Any, Final, cast

import grpc

from node.nameserver.directory.fields import RESULT
from quorumlog.cluster.channels import stub
from quorumlog.errors import ERROR_TRAILER
from quorumlog.pb import common_pb2
from quorumlog.pb import nameserver_pb2 as pb
from tests.cluster.workload import QUEUE_COUNT, TOPIC
from tests.patience import PATIENCE_S

EPOCH_LAST: Final = 2**63 - 1


def say(address: str, command: Mapping[str, Any] | None, **fields: Any) -> pb.ReportResponse:
    """Send one report, of the group that the command names. Raises grpc.RpcError."""
    group = "" if command is None else command.get("group", "")
    encoded = b"" if command is None else json.dumps(command).encode()
    request = pb.ReportRequest(**{"group": group, "command": encoded, **fields})
    with grpc.insecure_channel(address) as channel:
        service = stub(channel, pb.DESCRIPTOR)
        return cast(pb.ReportResponse, service.Report(request, timeout=PATIENCE_S))


def refusal(address: str, command: Mapping[str, Any], **fields: Any) -> str:
    """Send one report that has to be refused; return the code, or the reason of the directory."""
    try:
        answer = say(address, command, **fields)
    except grpc.RpcError as error:
        for key, value in cast(Any, error).trailing_metadata() or ():
            if key == ERROR_TRAILER:
                return common_pb2.Error.FromString(value).code
        raise
    result = RESULT.validate_json(answer.result)
    assert not result.is_accepted, f"a stranger was believed: {command}"
    return result.reason


def known_group(address: str, group: str) -> dict[str, Any]:
    """Return what anybody is told of a group: its brokers, epochs and addresses."""
    answer = say(address, None, group=group)
    return cast(dict[str, Any], json.loads(answer.own_group))


def registration(**changes: Any) -> dict[str, Any]:
    """A registration of a master of a Raft group with the topic of the tests."""
    return {
        "op": "register",
        "cluster": "c",
        "group": "forged",
        "kind": "raft",
        "broker_id": 97,
        "start_ms": time.time_ns() // 1_000_000,
        "address": "127.0.0.1:1",
        "now_ms": time.time_ns() // 1_000_000,
        "role": "master",
        "epoch": 1,
        "ha_address": "",
        "log_end": [0, 0],
        "bindings": {},
        "in_sync": [],
        "in_sync_version": 0,
        "copy_count": 1,
        "topics_version": [0, 1],
        "topics": {TOPIC: [QUEUE_COUNT, QUEUE_COUNT, 6, 0]},
        **changes,
    }


def as_broker(group: Mapping[str, Any], broker_id: int, **changes: Any) -> dict[str, Any]:
    """A registration in the name of a broker that the directory knows, as it knows it."""
    broker = group["brokers"][str(broker_id)]
    names = ("start_ms", "address", "ha_address", "role", "epoch", "log_end")
    return registration(
        cluster=group["cluster"],
        group=group["name"],
        kind=group["kind"],
        broker_id=broker_id,
        **{
            **{name: broker[name] for name in names},
            "copy_count": group["copy_count"],
            "topics": None,
            "topics_version": group["topics_version"],
            **changes,
        },
    )


def heartbeat_of(group: Mapping[str, Any], broker_id: int, **changes: Any) -> dict[str, Any]:
    """A heartbeat in the name of a broker that the directory knows."""
    full = as_broker(group, broker_id)
    names = ("group", "broker_id", "start_ms", "now_ms", "epoch", "log_end")
    return {"op": "heartbeat", **{name: full[name] for name in names}, **changes}
