"""Targets of files and states that travel: snapshots, images, tables, meta files.

A disk may return any bytes. Most mutations of a file with a checksum end with a corrected checksum,
so that the input reaches the code behind the check.
"""

import functools
import json
import os
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, Final

from node.config.limits import Limits
from node.errors.nameserver import FilesDamagedError
from node.nameserver.replica.dump import Dump, read_dump, write_dump
from node.peers.lives_file import LivesFile, LivesRecord
from node.replication.ha.core.epochs import Epochs
from node.replication.ha.core.sender import HaProtocolError
from node.replication.ha.core.types import (
    AckMode,
    EpochStart,
    HaBinding,
    HaStanding,
    ReplicaState,
)
from node.replication.ha.storage import epoch_file
from node.replication.ha.storage import image as log_image
from node.replication.raft.storage.hard_state import NodeFile, NodeRecord
from node.replication.raft.storage.snapshot import (
    Snapshot,
    SnapshotFormatError,
    decode_snapshot,
    encode_snapshot,
)
from node.runtime.identity import IdentityMismatchError
from node.state.checkpoint_tables import (
    CHECKPOINT_TABLES,
    decode_group_settings,
    decode_groups,
    decode_members,
    decode_producers,
    decode_topics,
)
from node.state.image import decode_image, encode_image
from node.state.registry import TABLES, decode_table, encode_table
from node.state.state import State, StateImage
from quorumlog.foreign_json import read_json
from quorumlog.pb.state_pb2 import Command
from raft.lives import Known
from raft.messages import Configuration, ConfigurationAt, SnapshotMeta, Standing
from raft.ready import HardState
from store.errors import CorruptionError, LayoutError
from store.files.checksum import crc32c
from store.files.file_system import FileSystem
from tests.fuzz.structure import mutated_json
from tests.fuzz.target import KIB, FuzzTarget, claim, same_again

_U32: Final = 4


def _crc(data: bytes) -> bytes:
    return crc32c(data).to_bytes(_U32, "big")


# Snapshots and images: magic, size of the header, header, state, checksum.


def _image() -> StateImage:
    state = State(Limits())
    put = Command.PutTopic(topic="orders", queue_count=4, permission=6)
    claim(state.apply_command(Command(put_topic=put), 0) is None, "a topic is refused")
    return state.image()


def _snapshot_examples(random: Random) -> list[bytes]:
    at = ConfigurationAt(3, Configuration((1, 2, 3), ()))
    offsets = {(b"orders", n): random.getrandbits(20) for n in range(random.randint(0, 3))}
    made = Snapshot(SnapshotMeta(5, 2, at), 4_096, 77, offsets, 6, encode_image(_image()))
    return [encode_snapshot(made)]


def _log_image_examples(random: Random) -> list[bytes]:
    made = log_image.LogImage(0, {(b"orders", 1): 5}, EpochStart(random.randint(1, 4), 0), _image())
    return [log_image.encode(made)]


def _mutated_content(random: Random, data: bytes) -> bytes:
    """Change the JSON of the header, or that of the state."""
    hi = 12 + int.from_bytes(data[8:12], "big")
    header, state = data[12:hi], data[hi:-_U32]
    if random.random() < 0.7:
        header = mutated_json(random, header)
    else:
        state = mutated_json(random, state)
    content = data[:8] + len(header).to_bytes(4, "big") + header + state
    return content + _crc(content)


def _checked(data: bytes) -> bytes:
    return data[:-_U32] + _crc(data[:-_U32])


def _json(data: bytes) -> None:
    read_json(data)


def _json_examples(random: Random) -> list[bytes]:
    depth = random.choice((5, 63, 64, 65, 5_000))
    return [b'{"a": [1, 2.5, "x", null]}', b"[" * depth + b"]" * depth, encode_image(_image())]


# Tables of the checkpoint, in the form of RocketMQ.

_DECODERS: Final[dict[str, Callable[[str], object]]] = {
    "topics.json": decode_topics,
    "subscriptionGroup.json": lambda text: decode_group_settings(text, 0),
    "consumerOffset.json": lambda text: decode_groups('{"subscriptionGroupTable": {}}', text),
    "producers.json": decode_producers,
    "members.json": decode_members,
    **{
        kind.file_name: lambda text, kind=kind: decode_table(kind, text)  # type: ignore[misc]
        for kind in TABLES
        if kind.file_name
    },
}
_NAMES: Final = tuple(_DECODERS)


def _tables(data: bytes) -> None:
    """The first byte chooses the file."""
    if data:
        _DECODERS[_NAMES[data[0] % len(_NAMES)]](data[1:].decode("utf-8", "replace"))


def _table_examples(random: Random) -> list[bytes]:
    image = _image()
    texts = {table.name: table.encode(image, 5) for table in CHECKPOINT_TABLES}
    for kind in TABLES:
        if kind.file_name and kind.name in image.tables:
            texts[kind.file_name] = encode_table(kind, image.tables[kind.name], 5)
    return [bytes((_NAMES.index(name),)) + text.encode() for name, text in texts.items()]


def _mutated_table(random: Random, data: bytes) -> bytes:
    return data[:1] + mutated_json(random, data[1:])


# Meta files in one directory: one payload, as if both generations had it, or given bytes.

_FS: Final = FileSystem()


@functools.cache
def _own() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="fuzz-meta-")


def _directory() -> str:
    return _own().name


def _write(name: str, payload: bytes) -> None:
    for generation in (1, 2):
        line = b"quorumlog-meta 1 %d %d %08x" % (generation, len(payload), crc32c(payload))
        _write_raw(f"{name}.{generation % 2}", line + b" %08x\n" % crc32c(line) + payload)


def _write_raw(name: str, content: bytes) -> None:
    Path(_directory(), name).write_bytes(content)


def _is_object(payload: bytes) -> bool:
    """Whether a payload is what a meta file can have: `MetaFile.save` takes objects only."""
    try:
        return isinstance(json.loads(payload), dict)
    except (ValueError, RecursionError):
        return False


def _node_file(data: bytes) -> None:
    if _is_object(data):
        _write("raft", data)
        found = NodeFile(_FS, _directory()).load("c", 1, must_exist=True)
        claim(found.node_id == 1 and found.hard_state.term >= 0, f"{found}")


def _node_examples(_random: Random) -> list[bytes]:
    at = ConfigurationAt(3, Configuration((1, 2), (3,)))
    record = NodeRecord("c", 1, True, HardState(5, 2, Standing.FULL, 0), at, (3, 9), False, at, 4)
    fenced = replace(record, state_fence="table offsets differs", state_fence_position=77)
    return [_saved_node(record), _saved_node(fenced)]


def _saved_node(record: NodeRecord) -> bytes:
    with tempfile.TemporaryDirectory() as directory:
        file = NodeFile(_FS, directory)
        file.load("c", 1, must_exist=False)
        file.save(record)
        return _payload_in(directory, "raft")


def _payload_in(directory: str, name: str) -> bytes:
    return Path(directory, f"{name}.0").read_bytes().partition(b"\n")[2]


def _lives_file(data: bytes) -> None:
    if _is_object(data):
        _write("lives", data)
        found = LivesFile(_FS, _directory()).load("c", 1)
        claim(found.node_id == 1 and found.life >= 0, f"{found}")


def _lives_examples(_random: Random) -> list[bytes]:
    record = LivesRecord("c", 1, 4, (7, 8), 1, "", 9, 2, {2: Known(), 3: Known(life=5)})
    apart = {3: (Known(life=4, nonce=44), Known(life=6, nonce=66, term=2))}
    return [_saved_lives(record), _saved_lives(replace(record, apart=apart))]


def _saved_lives(record: LivesRecord) -> bytes:
    with tempfile.TemporaryDirectory() as directory:
        file = LivesFile(_FS, directory)
        file.load("c", 1)
        file.save(record)
        return _payload_in(directory, "lives")


def _binding_file(data: bytes) -> None:
    if _is_object(data):
        _write(epoch_file.BINDING_FILE, data)
        found = epoch_file.BindingFile(_FS, _directory()).load(must_exist=True)
        claim(found is not None and found.standing in HaStanding, f"{found}")


def _binding_examples(_random: Random) -> list[bytes]:
    state = ReplicaState(HaBinding(3, 1, 9), HaStanding.FULL, 7, AckMode.SYNC)
    with tempfile.TemporaryDirectory() as directory:
        file = epoch_file.BindingFile(_FS, directory)
        file.load(must_exist=False)
        file.save(state)
        return [_payload_in(directory, epoch_file.BINDING_FILE)]


def _epochs_examples(random: Random) -> list[bytes]:
    starts = sorted(random.sample(range(10**6), 4))
    epochs = Epochs([EpochStart(number, start) for number, start in enumerate(starts, 1)])
    return [epoch_file.encode(epochs), epoch_file.encode(Epochs())]


def _repaired_epochs(data: bytes) -> bytes:
    """Put count and checksum of the first two lines right."""
    lines = data.split(b"\n", 2)[2:]
    rest = lines[0] if lines else b""
    return b"%d\n%d\n" % (len(rest.splitlines()), zlib.crc32(rest) & 0x7FFFFFFF) + rest


def _meta_file(data: bytes) -> None:
    """The bytes of both generations; the first one's size in two bytes before them."""
    size = int.from_bytes(data[:2], "big")
    _write_raw("raft.1", data[2 : 2 + size])
    _write_raw("raft.0", data[2 + size :])
    NodeFile(_FS, _directory()).load_any()


def _meta_examples(random: Random) -> list[bytes]:
    _write("raft", _node_examples(random)[0])
    parts = [Path(_directory(), name).read_bytes() for name in ("raft.1", "raft.0")]
    return [len(parts[0]).to_bytes(2, "big") + b"".join(parts)]


def _dump(data: bytes) -> None:
    _write_raw("dump", data)
    found = read_dump(_FS, os.path.join(_directory(), "dump"))
    claim(found.before_last[1] + 1 == found.last[1], f"{found}")


def _dump_examples(_random: Random) -> list[bytes]:
    path = os.path.join(_directory(), "written")
    write_dump(_FS, path, Dump((b"b", 8, 2), (b"a", 7, 2), {"version": 1}))
    return [Path(path).read_bytes()]


def _repaired_dump(data: bytes) -> bytes:
    """Put size and checksum of the first line right."""
    line, _, body = data.partition(b"\n")
    words = line.split(b" ")
    if len(words) == 6:
        words[4:] = b"%d" % len(body), b"%08x" % crc32c(body)
    return b" ".join(words) + b"\n" + body


def _mutated_dump(random: Random, data: bytes) -> bytes:
    line, _, body = data.partition(b"\n")
    return line + b"\n" + mutated_json(random, body)


_SHAPE: Final = (ValueError, KeyError, TypeError, AttributeError, OverflowError)
"""The errors that the decoders of tables promise; their callers name the file."""
_LARGE: Final[dict[str, Any]] = {"memory_base_bytes": 2 << 20, "memory_factor": 1 * KIB}

TARGETS: Final = (
    FuzzTarget(
        "file-snapshot",
        "a snapshot is refused by name, or reads the same after it is written again",
        same_again(decode_snapshot, encode_snapshot),
        ("node.replication.raft.storage.snapshot", "node.replication.raft.storage.hard_state"),
        _snapshot_examples,
        (SnapshotFormatError,),
        repaired=_checked,
        mutated=_mutated_content,
    ),
    FuzzTarget(
        "file-ha-image",
        "an image is refused by name, or reads the same after it is written again",
        same_again(log_image.decode, log_image.encode),
        ("node.replication.ha.storage.image", "node.state.image"),
        _log_image_examples,
        (HaProtocolError,),
        repaired=_checked,
        mutated=_mutated_content,
        **_LARGE,
    ),
    FuzzTarget(
        "file-state",
        "a state is refused by name, or reads the same after it is written again",
        same_again(decode_image, encode_image),
        ("node.state.image", "node.state.registry"),
        lambda _random: [encode_image(_image())],
        (CorruptionError,),
        mutated=mutated_json,
        **_LARGE,
    ),
    FuzzTarget(
        "file-tables",
        "a table of the checkpoint is refused with one of the errors that its callers expect",
        _tables,
        ("node.state.checkpoint_tables", "node.state.registry"),
        _table_examples,
        _SHAPE,
        mutated=_mutated_table,
        **_LARGE,
    ),
    FuzzTarget(
        "file-json",
        "a document is refused with ValueError, however deep it is nested",
        _json,
        ("node.runtime.json_text",),
        _json_examples,
        (ValueError,),
        mutated=mutated_json,
        **_LARGE,
    ),
    FuzzTarget(
        "file-node",
        "the memory of a node is refused by name, or its numbers are in their ranges",
        _node_file,
        ("node.replication.raft.storage.hard_state", "store.files.meta_file"),
        _node_examples,
        (CorruptionError, LayoutError, IdentityMismatchError),
        mutated=mutated_json,
    ),
    FuzzTarget(
        "file-lives",
        "the memory of lives is set aside, or its numbers are in their ranges",
        _lives_file,
        ("node.peers.lives_file",),
        _lives_examples,
        mutated=mutated_json,
    ),
    FuzzTarget(
        "file-ha-binding",
        "the binding of a replica is refused by name, or its standing and mode are known ones",
        _binding_file,
        ("node.replication.ha.storage.epoch_file",),
        _binding_examples,
        (CorruptionError, LayoutError),
        mutated=mutated_json,
    ),
    FuzzTarget(
        "file-ha-epochs",
        "a file of epochs is refused by name, or reads the same after it is written again",
        same_again(
            lambda data: epoch_file.decode("file", data).entries,
            lambda entries: epoch_file.encode(Epochs(entries)),
        ),
        ("node.replication.ha.storage.epoch_file",),
        _epochs_examples,
        (CorruptionError,),
        repaired=_repaired_epochs,
    ),
    FuzzTarget(
        "file-meta",
        "the two generations of a meta file are refused by name, or one of them is whole",
        _meta_file,
        ("store.files.meta_file",),
        _meta_examples,
        (CorruptionError, LayoutError),
    ),
    FuzzTarget(
        "file-ns-dump",
        "a dump of the directory is refused by name, or its entries follow each other",
        _dump,
        ("node.nameserver.replica.dump", "node.nameserver.directory.fields"),
        _dump_examples,
        (FilesDamagedError,),
        repaired=_repaired_dump,
        mutated=_mutated_dump,
    ),
)
