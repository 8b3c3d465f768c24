"""The replicated state as bytes: the content of a snapshot.

Owns one format, JSON that a person can read, and its checks; must not know files or the log. Equal
states give equal bytes. The checkpoint on disk has other shapes, RocketMQ's: `checkpoint_tables`.
"""

import json
from typing import Any, Final

from node.state.registry import check_tables
from node.state.state import Member, StateImage, Versions
from node.state.tables.table import TableImage
from node.state.tables.topic_types import MIXED, TopicSettings
from quorumlog.foreign_json import read_json
from store.errors import CorruptionError

FORMAT: Final = 1


def encode_image(image: StateImage) -> bytes:
    """Return the bytes of a state."""
    return json.dumps(
        {
            "format": FORMAT,
            "applied_index": image.applied_index,
            "next_command_offset": image.next_command_offset,
            "versions": image.versions._asdict(),
            # In the form that builds without types read, unless a type was chosen.
            "topics": {n: t[:2] if t.message_type == MIXED else t for n, t in image.topics.items()},
            "groups": image.groups,
            "producers": image.producers,
            "members": image.members,
            "refused_count": image.refused_count,
            "parts": image.tables,
        },
        sort_keys=True,
        separators=(",", ":"),
        allow_nan=False,
    ).encode()


def decode_image(data: bytes) -> StateImage:
    """Return the state of the bytes of `encode_image`. Raises CorruptionError."""
    try:
        document: dict[str, Any] = read_json(data)
        if document["format"] != FORMAT:
            raise CorruptionError("state", 0, "format", str(FORMAT), str(document["format"]))
        return StateImage(
            int(document["applied_index"]),
            int(document["next_command_offset"]),
            Versions(**{name: _integer(count) for name, count in document["versions"].items()}),
            {name: _topic(*topic) for name, topic in document["topics"].items()},
            {
                name: {
                    topic: {int(queue_id): _integer(offset) for queue_id, offset in offsets.items()}
                    for topic, offsets in group.items()
                }
                for name, group in document["groups"].items()
            },
            tuple(
                (_integer(i), _integer(last), tuple(map(_integer, positions)))
                for i, last, positions in document["producers"]
            ),
            {
                int(node): Member(*map(_text, member))
                for node, member in document["members"].items()
            },
            int(document["refused_count"]),
            check_tables({name: TableImage(*p) for name, p in document["parts"].items()}),
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise CorruptionError("state", 0, "snapshot", "a state", repr(error)) from error


def _integer(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{value!r:.50} is no integer")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.50} is no text")
    return value


def _topic(queue_count: object, permission: object, message_type: object = MIXED) -> TopicSettings:
    return TopicSettings(_integer(queue_count), _integer(permission), _text(message_type))
