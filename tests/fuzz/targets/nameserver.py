"""Targets of the name server: its wire, the commands of its directory, reports, dumps."""

import json
import zlib
from random import Random
from typing import Any, Final

from node.errors.common import NodeError
from node.nameserver.directory.directory import (
    Directory,
    delete_pair_command,
    encoded_command,
    put_pair_command,
    unregister_command,
)
from node.nameserver.directory.reports import Binding, BrokerReport, Kind, LogEnd, TopicQueues
from node.nameserver.replica import messages
from node.nameserver.replica.plain_values import decoded_value, encoded_value
from node.nameserver.replica.pysyncobj_wire import (
    FRAME_SIZE_BYTES_MAX,
    HANDSHAKE_SIZE_BYTES_MAX,
    HANDSHAKE_VALUE_COUNT_MAX,
    BoundedConnection,
)
from node.nameserver.report_judge import ReportJudge
from quorumlog.pb import nameserver_pb2 as pb
from tests.fuzz.structure import mutated_json, text
from tests.fuzz.target import KIB, FuzzTarget, claim

_VALUE_COUNT_MAX: Final = 1_000


def _wire(data: bytes) -> None:
    value = decoded_value(data, _VALUE_COUNT_MAX)
    messages.is_sound(value)
    again = decoded_value(encoded_value(value), 2 * _VALUE_COUNT_MAX)
    claim(repr(again) == repr(value), "another value after it is written again")


def _values(random: Random) -> list[Any]:
    entries = [(random.randbytes(9), 8 + n, 3) for n in range(random.randint(0, 3))]
    return [
        {"type": "request_vote", "term": 3, "last_log_index": 2**40, "last_log_term": 1},
        {"type": "append_entries", "term": 3, "commit_index": 5, "prevLogIdx": 7, "prevLogTerm": 2,
         "entries": entries},
        {"type": "append_entries", "term": 3, "commit_index": 5, "serialized": (b"x", True, False)},
        {"type": "next_node_idx", "next_node_idx": 5, "reset": False, "success": True, "term": 9},
        {"type": "apply_command", "command": b"\0abc", "request_id": 300},
        ["a", -1, 2**33, 2.5, None, True, text(random).encode("utf-8", "replace")],
        "127.0.0.1:5",
    ]  # fmt: skip


def _stranger(data: bytes) -> None:
    """A frame of a stranger as the connection opens it: unpacked, then read."""
    connection = BoundedConnection.__new__(BoundedConnection)
    connection.frame_size_bytes_max = HANDSHAKE_SIZE_BYTES_MAX
    connection.encryptor = connection.recvRandKey = None
    connection._opened(data)


def _stranger_examples(random: Random) -> list[bytes]:
    values = ["127.0.0.1:5", random.randbytes(32), (random.randbytes(32), "127.0.0.1:5")]
    found = [zlib.compress(encoded_value(value)) for value in values]
    return [*found, zlib.compress(bytes(100 * KIB)), zlib.compress(b"[" * 4_000)]


def _repacked(data: bytes) -> bytes:
    """Pack plain bytes; leave packed ones as they are."""
    return data if data[:1] == b"\x78" else zlib.compress(data)


# The directory.


def _directory(data: bytes) -> None:
    """One command a line."""
    directory = Directory()
    for line in data.split(b"\n"):
        before = _state_of(directory)
        result = directory.apply(line)
        claim(
            result.is_accepted or _state_of(directory) == before, "a refused command has changed it"
        )
    found = json.loads(json.dumps(directory.snapshot()))
    restored = Directory()
    restored.restore(found)
    claim(restored == directory, "another directory after a restart")
    last = encoded_command(put_pair_command("n", "k", "v"), "last")
    claim(restored.apply(last) == directory.apply(last), "another answer after a restart")


def _state_of(directory: Directory) -> object:
    return {name: part for name, part in directory.snapshot().items() if name != "results"}


def _report(random: Random, kind: Kind) -> BrokerReport:
    return BrokerReport(
        "c",
        random.choice(("g", "h")),
        kind,
        random.choice((1, 2, 3)),
        random.choice((5, 6)),
        f"127.0.0.1:{random.randrange(5)}",
        1_000,
        role=random.choice(("master", "slave")),
        epoch=random.choice((0, 1, 2)),
        log_end=LogEnd(random.choice((0, 1)), random.randrange(99)),
        bindings={1: Binding(1, "n")} if random.random() < 0.5 else {},
        in_sync=(1, 2) if random.random() < 0.5 else (),
        topics={"orders": TopicQueues(4, 4, 6)} if random.random() < 0.5 else None,
    )


def _commands(random: Random) -> list[bytes]:
    kinds: tuple[Kind, ...] = ("raft", "ha")
    kind = random.choice(kinds)
    elect = {"op": "elect", "group": "g", "number": 2, "master_id": 1, "nonce": "z"}
    alter = {"op": "alter_in_sync", "group": "g", "requester": 1, "members": [1, 2]}
    expected: dict[str, Any] = {"expected_epoch": random.choice((0, 1)), "expected_version": 0}
    commands: list[Any] = [
        _report(random, kind).command(),
        _report(random, kind).command(),
        _report(random, kind).heartbeat(),
        elect | expected,
        alter | expected,
        put_pair_command("n", "k", text(random) or "v"),
        delete_pair_command("n", "k"),
        unregister_command("g", 1, 5),
    ]
    return [encoded_command(command, f"id{n}") for n, command in enumerate(commands)]


def _directory_examples(random: Random) -> list[bytes]:
    commands = _commands(random)
    return [b"\n".join(random.choices(commands, k=random.randint(1, 9))) for _ in range(4)]


def _mutated_directory(random: Random, data: bytes) -> bytes:
    lines = data.split(b"\n")
    at = random.randrange(len(lines))
    lines[at] = mutated_json(random, lines[at])
    if random.random() < 0.3:
        lines.insert(random.randrange(len(lines) + 1), random.choice(_commands(random)))
    return b"\n".join(lines)


def _judge(data: bytes) -> None:
    """A report without a proof: nothing is believed that this process does not know."""
    judge = ReportJudge("c", "g", own_id=1, known=lambda: {1: "a:1", 2: "a:2"})
    command = judge.believed(pb.ReportRequest(group="g", command=data), lambda: 3)
    claim(command["op"] != "unregister" and command.get("broker_id", 2) == 2, f"{command}")
    if command["op"] == "register":
        claim(command["address"] == "a:2", f"believed: {command}")


def _judge_examples(random: Random) -> list[bytes]:
    good = BrokerReport("c", "g", "raft", 2, 5, "a:2", 1_000, epoch=3).command()
    return [*_commands(random), encoded_command(good, "id")]


TARGETS: Final = (
    FuzzTarget(
        "ns-wire",
        "a value of a replica is refused by name, or is the same after it is written again",
        _wire,
        ("node.nameserver.replica.plain_values", "node.nameserver.replica.messages"),
        lambda random: [encoded_value(value) for value in _values(random)],
        (ValueError,),
        memory_factor=256,
    ),
    FuzzTarget(
        "ns-stranger",
        "a packed frame of a stranger unpacks to at most 4 KiB and 8 values",
        _stranger,
        ("node.nameserver.replica.plain_values", "node.nameserver.replica.pysyncobj_wire"),
        _stranger_examples,
        (ValueError, zlib.error),
        repaired=_repacked,
    ),
    FuzzTarget(
        "ns-directory",
        "any command has an answer, a refused one changes nothing, and a restart changes nothing",
        _directory,
        (
            "node.nameserver.directory.directory",
            "node.nameserver.directory.groups",
            "node.nameserver.directory.controller",
            "node.nameserver.directory.reports",
            "node.nameserver.directory.fields",
        ),
        _directory_examples,
        mutated=_mutated_directory,
        memory_base_bytes=2 << 20,
        memory_factor=1 * KIB,
        step_factor=2 * KIB,
    ),
    FuzzTarget(
        "ns-report",
        "a report without a proof is refused by name, or repeats what this process knows",
        _judge,
        ("node.nameserver.report_judge", "node.runtime.json_text"),
        _judge_examples,
        (NodeError,),
        mutated=mutated_json,
    ),
)
assert HANDSHAKE_VALUE_COUNT_MAX == 8, "the sentence of `ns-stranger`"
assert FRAME_SIZE_BYTES_MAX > HANDSHAKE_SIZE_BYTES_MAX
