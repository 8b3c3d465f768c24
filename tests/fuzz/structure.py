"""Mutations that know a structure: protobuf messages, and JSON documents.

Owns random messages of any protobuf class, random JSON values, and the change of one part of
either; must not know targets. Bytes that are no such structure stay as they are: other mutations
change those.
"""

import json
from collections.abc import Callable
from random import Random
from typing import Any, Final, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

_DEPTH_MAX: Final = 4
_INTEGERS: Final = (0, 1, 2, 3, 7, 8, 127, 128, 255, 256, 4_096, 65_535, 1 << 20, 1 << 31, 1 << 32)
_EDGES: Final = (1 << 40, 1 << 56, 1 << 60, (1 << 63) - 1, (1 << 64) - 1)
_TEXTS: Final = (
    "",
    "a",
    "orders",
    "%RETRY%g",
    "%DLQ%g",
    "rmq_sys_x",
    "\0",
    "\x01",
    "\x02",
    "ſ",
    "İ",
)
_JSON_NUMBERS: Final = (0, 1, -1, 2**31, 2**63, 2**64, 10**30, 0.5, 1e308, float("inf"), True)


def text(random: Random) -> str:
    """Return a text: a known name, or some characters, a few of them odd."""
    if random.random() < 0.6:
        return random.choice(_TEXTS)
    characters = "abcXYZ019_-%|./:= \t\n\x00\x01\x02\x7fäİıſK٣²\u2028😀"
    return "".join(random.choice(characters) for _ in range(random.randrange(24)))


def integer(random: Random, *, bits: int, is_signed: bool) -> int:
    """Return an integer that a field of `bits` bits can hold."""
    value = random.choice((*_INTEGERS, *_INTEGERS, *_EDGES, random.getrandbits(64)))
    value += random.choice((0, 0, 1, -1))
    value &= (1 << bits) - 1
    return value - (1 << bits) if is_signed and value >> (bits - 1) else value


# Protobuf. Its descriptors have two implementations, of which the stubs know one.

_Message = TypeVar("_Message", bound=Message)


def message(random: Random, kind: type[_Message], depth: int = 0) -> _Message:
    """Return a random message: any field may be set, lists are short."""
    made = kind()
    for field in kind.DESCRIPTOR.fields:
        if random.random() < 0.6:
            _fill(random, made, field, depth)
    return made


def mutated_message(kind: type[Message]) -> Callable[[Random, bytes], bytes]:
    """Return a mutation of one field of the messages of a class."""

    def mutated(random: Random, data: bytes) -> bytes:
        try:
            found = kind.FromString(data)
        except DecodeError:
            return data
        inner: Any = found
        for _ in range(_DEPTH_MAX):  # Go down into messages that are there, at random.
            held = [value for field, value in inner.ListFields() if _is_single_message(field)]
            if not held or random.random() < 0.5:
                break
            inner = random.choice(held)
        if not inner.DESCRIPTOR.fields:
            return data
        field = random.choice(inner.DESCRIPTOR.fields)
        if random.random() < 0.2:
            inner.ClearField(field.name)
        else:
            _fill(random, inner, field, 1)
        return found.SerializeToString()

    return mutated


def _is_single_message(field: Any) -> bool:
    return bool(field.type == FieldDescriptor.TYPE_MESSAGE and not field.is_repeated)


def _fill(random: Random, made: Any, field: Any, depth: int) -> None:
    is_message = field.type == FieldDescriptor.TYPE_MESSAGE
    if is_message and depth >= _DEPTH_MAX:
        return
    if is_message and field.message_type.GetOptions().map_entry:
        return  # Maps of ours hold properties, which the examples of the targets have.
    if not field.is_repeated:
        if is_message:
            getattr(made, field.name).CopyFrom(_inner(random, field, depth))
        else:
            setattr(made, field.name, _scalar(random, field))
        return
    for _ in range(random.choice((0, 1, 1, 2, 3, 8))):
        value = _inner(random, field, depth) if is_message else _scalar(random, field)
        getattr(made, field.name).append(value)


def _inner(random: Random, field: Any, depth: int) -> Message:
    return message(random, GetMessageClass(field.message_type), depth + 1)


def _scalar(random: Random, field: Any) -> Any:
    kinds = FieldDescriptor
    match field.type:
        case kinds.TYPE_BOOL:
            return random.random() < 0.5
        case kinds.TYPE_STRING:
            return text(random)
        case kinds.TYPE_BYTES:
            return random.randbytes(random.choice((0, 1, 4, 16, 32, 40)))
        case kinds.TYPE_DOUBLE | kinds.TYPE_FLOAT:
            return random.choice((0.0, -1.0, 0.5, float("inf"), float("nan")))
        case kinds.TYPE_ENUM:
            return random.choice((*[one.number for one in field.enum_type.values], 77))
        case kinds.TYPE_UINT64 | kinds.TYPE_FIXED64:
            return integer(random, bits=64, is_signed=False)
        case kinds.TYPE_UINT32 | kinds.TYPE_FIXED32:
            return integer(random, bits=32, is_signed=False)
        case kinds.TYPE_INT64 | kinds.TYPE_SINT64 | kinds.TYPE_SFIXED64:
            return integer(random, bits=64, is_signed=True)
        case _:
            return integer(random, bits=32, is_signed=True)


# JSON.


def json_value(random: Random, depth: int = 0) -> Any:
    """Return a random JSON value."""
    kind = random.randrange(7 if depth < _DEPTH_MAX else 4)
    match kind:
        case 0:
            return random.choice(_JSON_NUMBERS)
        case 1:
            return text(random)
        case 2:
            return random.choice((None, True, False))
        case 3:
            return integer(random, bits=64, is_signed=True)
        case 4:
            return {text(random): json_value(random, depth + 1) for _ in range(random.randrange(4))}
        case _:
            return [json_value(random, depth + 1) for _ in range(random.randrange(4))]


def mutated_json(random: Random, data: bytes) -> bytes:
    """Return a document with one part replaced, left out, doubled or nested."""
    try:
        root: list[Any] = [json.loads(data)]
    except (ValueError, RecursionError):
        return data
    holder: Any = root
    key: Any = 0
    while isinstance(holder[key], dict | list) and holder[key] and random.random() < 0.85:
        holder = holder[key]
        keys = list(holder) if isinstance(holder, dict) else range(len(holder))
        key = random.choice(keys)
    match random.randrange(5):
        case 0:
            del holder[key]
        case 1:
            holder[key] = [holder[key]]
        case 2 if isinstance(holder, dict):
            holder[text(random)] = holder[key]
        case _:
            holder[key] = json_value(random)
    # JSON has no Infinity, but a number that Python reads as one.
    return json.dumps(root[0] if root else None).replace("Infinity", "1e999").encode()
