"""Requests with any field values: made by looking at what a call takes, from one seed.

Owns which values are tried; must not know what a node makes of them. Most values of most requests
make sense in the test's cluster, because a request that is refused by its first field says nothing
about the others.
"""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message_factory import GetMessageClass

_INT_RANGES: Final = {
    FieldDescriptor.CPPTYPE_INT32: (-(1 << 31), (1 << 31) - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(1 << 63), (1 << 63) - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, (1 << 32) - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, (1 << 64) - 1),
}
_TEXTS: Final = (
    *("", " ", "x", "x" * 127, "x" * 256, "x" * 5_000, "a\0b", "\x01\x02", "ä€😀"),
    *("%RETRY%g", "%DLQ%g", "rmq_sys_quorumlog", "rmq_sys_undeliverable", "a/b\\.."),
    *("-1", "9" * 40, "NaN", "1e999", "(" * 300, "a > 1 AND b IS NOT NULL"),
    *("0" * 32, "F" * 32, "F" * 56, "{", "[" * 3_000),
)
_FLOATS: Final = (0.0, -1.0, float("nan"), float("inf"), 1e38)
_HOSTILITY: Final = (0.02, 0.1, 0.3, 0.8)
"""How many of the values of one request make no sense."""
REPEATED_MAX: Final = 3
DEPTH_MAX: Final = 5


class Hostile:
    """Makes requests. `known` has, by the name of a field, values that make sense here."""

    def __init__(self, seed: int, known: Mapping[str, Sequence[Any]]) -> None:
        self.random: Final = Random(seed)
        self._known = known
        self._share = 0.0

    def request(self, kind: Descriptor) -> Any:
        """Make a message of a kind: each field is left out, sensible or hostile."""
        self._share = self.random.choice(_HOSTILITY)
        return self._message(kind, 0)

    def _message(self, kind: Descriptor, depth: int) -> Any:
        made: Any = GetMessageClass(kind)()
        for field in kind.fields:
            if self.random.random() < 0.2 or depth > DEPTH_MAX:
                continue
            if field.is_repeated:
                self._fill(made, field, depth)
            elif field.message_type is not None:
                getattr(made, field.name).CopyFrom(self._message(field.message_type, depth + 1))
            else:
                setattr(made, field.name, self._value(field))
        return made

    def _fill(self, made: Any, field: FieldDescriptor, depth: int) -> None:
        target, kind = getattr(made, field.name), field.message_type
        for _ in range(self.random.randint(0, REPEATED_MAX)):
            if kind is None:
                target.append(self._value(field))
            elif kind.GetOptions().map_entry:
                key, value = kind.fields_by_name["key"], kind.fields_by_name["value"]
                if value.message_type is None:
                    target[self._value(key)] = self._value(value)
            else:
                target.add().CopyFrom(self._message(kind, depth + 1))

    def _value(self, field: FieldDescriptor) -> Any:
        random = self.random
        is_text = field.type == FieldDescriptor.TYPE_STRING
        candidates = [v for v in self._known.get(field.name, ()) if isinstance(v, str) is is_text]
        if candidates and random.random() >= self._share:
            return random.choice(candidates)
        match field.cpp_type:
            case FieldDescriptor.CPPTYPE_BOOL:
                return random.random() < 0.5
            case FieldDescriptor.CPPTYPE_STRING if field.type == FieldDescriptor.TYPE_BYTES:
                return random.randbytes(random.choice((0, 1, 4, 91, 300, 5_000)))
            case FieldDescriptor.CPPTYPE_STRING:
                return random.choice(_TEXTS)
            case FieldDescriptor.CPPTYPE_ENUM:
                return random.choice((0, 1, 2, 3, 99, -1, (1 << 31) - 1))
            case FieldDescriptor.CPPTYPE_DOUBLE | FieldDescriptor.CPPTYPE_FLOAT:
                return random.choice(_FLOATS)
            case _:
                return self._number(*_INT_RANGES[field.cpp_type])

    def _number(self, lo: int, hi: int) -> int:
        near = (lo, lo + 1, -1, 0, 1, 2, 255, 1 << 16, 1 << 31, 1 << 32, hi - 1, hi)
        return self.random.choice([number for number in near if lo <= number <= hi])

    def records(self, record: bytes) -> tuple[bytes, int]:
        """Return up to three of a record, most with a field changed, and how many they are."""
        count = self.random.randint(1, 3)
        return b"".join(self._record(record) for _ in range(count)), count

    def _record(self, record: bytes) -> bytes:
        data, random = bytearray(record), self.random
        if random.random() < 0.5:
            return record
        at = random.choice((0, 4, 8, 12, 16, 20, 28, 36, 40, 48, 56, 64, 72, 76, 84, len(data) - 4))
        value = random.choice((0, 1, -1, 1 << 30, (1 << 31) - 1, -(1 << 31), 0x10, 0x20, 0x3C))
        data[at : at + 4] = value.to_bytes(4, "big", signed=True)
        return bytes(data)
