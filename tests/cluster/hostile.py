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

from tests.fuzz.structure import message

_TEXTS: Final = (
    *("", " ", "x", "x" * 127, "x" * 256, "x" * 5_000, "a\0b", "\x01\x02", "ä€😀"),
    *("%RETRY%g", "%DLQ%g", "rmq_sys_quorumlog", "rmq_sys_undeliverable", "a/b\\.."),
    *("-1", "9" * 40, "NaN", "1e999", "(" * 300, "a > 1 AND b IS NOT NULL"),
    *("0" * 32, "F" * 32, "F" * 56, "{", "[" * 3_000),
)
_HOSTILITY: Final = (0.02, 0.1, 0.3, 0.8)
"""How many of the values of one request make no sense."""
MAP_COUNT_MAX: Final = 3


class Hostile:
    """Makes requests. `known` has, by the name of a field, values that make sense here."""

    def __init__(self, seed: int, known: Mapping[str, Sequence[Any]]) -> None:
        self.random: Final = Random(seed)
        self._known = known
        self._share = 0.0

    def request(self, kind: Descriptor) -> Any:
        """Make a message of a kind: each field is left out, sensible or hostile."""
        self._share = self.random.choice(_HOSTILITY)
        made: Any = message(self.random, GetMessageClass(kind))
        self._make_sense(made)
        return made

    def _make_sense(self, made: Any) -> None:
        for field in made.DESCRIPTOR.fields:
            kind, value = field.message_type, getattr(made, field.name)
            if kind is not None and kind.GetOptions().map_entry:
                if kind.fields_by_name["value"].type == FieldDescriptor.TYPE_STRING:
                    for _ in range(self.random.randint(0, MAP_COUNT_MAX)):
                        value[self.random.choice(_TEXTS)] = self.random.choice(_TEXTS)
            elif field.is_repeated and kind is None:
                value[:] = [self._value(field, item) for item in value]
            elif field.is_repeated:
                for inner in value:
                    self._make_sense(inner)
            elif kind is not None:
                if made.HasField(field.name):
                    self._make_sense(value)
            elif field.containing_oneof is None and self.random.random() < 0.8:
                setattr(made, field.name, self._value(field, value))

    def _value(self, field: FieldDescriptor, value: Any) -> Any:
        is_text = field.type == FieldDescriptor.TYPE_STRING
        candidates = [v for v in self._known.get(field.name, ()) if isinstance(v, str) is is_text]
        if candidates and self.random.random() >= self._share:
            return self.random.choice(candidates)
        return self.random.choice(_TEXTS) if is_text else value

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
