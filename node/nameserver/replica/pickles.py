"""Plain values in the form that PySyncObj sends them, read without a pickle machine.

Owns the values that may come from the wire of the replicas; must not know the library or the
meaning of a message. The form is that of `pickle.dumps(value, 4)` for numbers, texts, bytes and
containers of them, so replicas of earlier versions can read it and be read. The reader is our own:
a pickle machine calls functions that the data names, and one instruction of five bytes makes it
allocate 32 GiB, even before the sender has authenticated. This reader allocates at most the size of
an instruction's own bytes, the caller limits the count of values, and an instruction that no
replica writes is refused. The reader also limits the count of instructions by the count of values:
a megabyte of them compresses into a few bytes.
"""

import pickle
import struct
from collections.abc import Callable
from typing import Any, Final

_INTEGER_SIZE_BYTES_MAX: Final = 8
_DEPTH_MAX: Final = 16
"""Containers that are open at once; messages have four."""
_STEPS_PER_VALUE_MAX: Final = 4
"""Instructions per value: a list is made and memoized, and its items stand between two more."""
_STEP_COUNT_MORE: Final = 1_024
"""Further instructions: one frame for each 64 KiB, and the end."""
_U16: Final = struct.Struct("<H")
_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")
_I32: Final = struct.Struct("<i")
_F64: Final = struct.Struct(">d")


class UnsafePickleError(ValueError):
    """Bytes are not a plain value, or one of too many parts. No part of it was used."""


def safe_loads(data: bytes, value_count_max: int) -> Any:
    """Read a value of at most `value_count_max` parts, with containers. Raises UnsafePickleError.

    Memory stays within a small multiple of the size of `data` and of `value_count_max`.
    """
    reader = _Reader(data, value_count_max)
    try:
        return reader.read()
    except (IndexError, struct.error, UnicodeDecodeError, TypeError) as error:
        raise UnsafePickleError(f"byte {reader.position} of {len(data)}: {error}") from error


def safe_dumps(value: object, protocol: object = None) -> bytes:
    """Return plain values in the form that `safe_loads` reads."""
    del protocol  # The library asks for protocol 2, which needs a function to make bytes.
    return pickle.dumps(value, 4)


def refuse_loads(*_: object) -> None:
    """Raise UnsafePickleError; takes the place of the library's own reader, which we never call."""
    raise UnsafePickleError("nothing that a replica reads goes through a pickle machine")


class _Reader:
    """Builds one value. Used once."""

    def __init__(self, data: bytes, value_count_max: int) -> None:
        self.position = 0
        self._data = data
        self._left_count = value_count_max
        self._left_step_count = _STEPS_PER_VALUE_MAX * value_count_max + _STEP_COUNT_MORE
        self._stack: list[Any] = []
        self._outer: list[list[Any]] = []
        """The stack below each open mark."""
        self._memo: list[Any] = []
        """Texts and bytes by number. None for a container: no replica refers to one again, and a
        reference could make a container that contains itself."""

    def read(self) -> Any:
        if self._take(2) != b"\x80\x04":
            raise UnsafePickleError("the first bytes are not those of a value")
        while (step := self._take(1)) != pickle.STOP:
            instruction = _INSTRUCTIONS.get(step)
            if instruction is None:
                raise UnsafePickleError(f"byte {self.position - 1}: no replica writes {step!r}")
            if not self._left_step_count:
                raise UnsafePickleError(f"byte {self.position}: too many steps for its parts")
            self._left_step_count -= 1
            instruction(self)
        if len(self._stack) != 1 or self._outer or self.position != len(self._data):
            raise UnsafePickleError(f"byte {self.position}: that is not the end of one value")
        return self._stack[0]

    def _take(self, size_bytes: int) -> bytes:
        end = self.position + size_bytes
        if end > len(self._data):
            raise UnsafePickleError(f"byte {self.position}: {size_bytes} more should follow")
        taken = self._data[self.position : end]
        self.position = end
        return taken

    def _number(self, form: struct.Struct) -> Any:
        return form.unpack(self._take(form.size))[0]

    def _push(self, value: object) -> None:
        if not self._left_count:
            raise UnsafePickleError(f"byte {self.position}: a value of too many parts")
        self._left_count -= 1
        self._stack.append(value)

    # --- Instructions ---

    def _frame(self) -> None:
        size_bytes = self._number(_U64)  # A hint for readers of files.
        if size_bytes > len(self._data) - self.position:
            raise UnsafePickleError(f"byte {self.position}: {size_bytes} more should follow")

    def _memoize(self) -> None:
        top = self._stack[-1]
        self._memo.append(top if isinstance(top, str | bytes) else None)

    def _again(self, form: struct.Struct | None) -> None:
        number = self._take(1)[0] if form is None else self._number(form)
        found = self._memo[number]
        if found is None:
            raise UnsafePickleError(f"byte {self.position}: a container for the second time")
        self._push(found)

    def _long(self) -> None:
        size_bytes = self._take(1)[0]
        if size_bytes > _INTEGER_SIZE_BYTES_MAX:
            raise UnsafePickleError(f"byte {self.position}: an integer of {size_bytes} bytes")
        self._push(int.from_bytes(self._take(size_bytes), "little", signed=True))

    def _mark(self) -> None:
        if len(self._outer) == _DEPTH_MAX:
            raise UnsafePickleError(f"byte {self.position}: more than {_DEPTH_MAX} containers deep")
        self._outer.append(self._stack)
        self._stack = []

    def _marked(self) -> list[Any]:
        """Close the last mark and return the values after it."""
        found, self._stack = self._stack, self._outer.pop()
        return found

    def _tuple(self, count: int | None) -> None:
        if count is None:
            found = self._marked()
        else:
            found = [self._stack.pop() for _ in range(count)][::-1]
        self._push(tuple(found))

    def _extend(self, items: list[Any]) -> None:
        if not isinstance(self._stack[-1], list):
            raise UnsafePickleError(f"byte {self.position}: items of no list")
        self._stack[-1].extend(items)

    def _update(self, items: list[Any]) -> None:
        table = self._stack[-1]
        if not isinstance(table, dict) or len(items) % 2:
            raise UnsafePickleError(f"byte {self.position}: items of no table")
        if not all(isinstance(key, str) for key in items[::2]):
            # Hashing tuples that are nested deep enough would end the process.
            raise UnsafePickleError(f"byte {self.position}: a key that is no text")
        table.update(zip(items[::2], items[1::2], strict=True))


_Instruction = Callable[[_Reader], None]


def _sized(form: struct.Struct | None, make: Callable[[bytes], object]) -> _Instruction:
    """Return the instruction that makes a text or bytes after a size of one byte, or of `form`."""

    def instruction(reader: _Reader) -> None:
        size_bytes = reader._take(1)[0] if form is None else reader._number(form)
        reader._push(make(reader._take(size_bytes)))

    return instruction


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


_INSTRUCTIONS: Final[dict[bytes, _Instruction]] = {
    pickle.FRAME: _Reader._frame,
    pickle.MEMOIZE: _Reader._memoize,
    pickle.BINGET: lambda reader: reader._again(None),
    pickle.LONG_BINGET: lambda reader: reader._again(_U32),
    pickle.NONE: lambda reader: reader._push(None),
    pickle.NEWTRUE: lambda reader: reader._push(True),
    pickle.NEWFALSE: lambda reader: reader._push(False),
    pickle.BININT1: lambda reader: reader._push(reader._take(1)[0]),
    pickle.BININT2: lambda reader: reader._push(reader._number(_U16)),
    pickle.BININT: lambda reader: reader._push(reader._number(_I32)),
    pickle.LONG1: _Reader._long,
    pickle.BINFLOAT: lambda reader: reader._push(reader._number(_F64)),
    pickle.SHORT_BINBYTES: _sized(None, bytes),
    pickle.BINBYTES: _sized(_U32, bytes),
    pickle.SHORT_BINUNICODE: _sized(None, _text),
    pickle.BINUNICODE: _sized(_U32, _text),
    pickle.EMPTY_TUPLE: lambda reader: reader._push(()),
    pickle.TUPLE1: lambda reader: reader._tuple(1),
    pickle.TUPLE2: lambda reader: reader._tuple(2),
    pickle.TUPLE3: lambda reader: reader._tuple(3),
    pickle.TUPLE: lambda reader: reader._tuple(None),
    pickle.EMPTY_LIST: lambda reader: reader._push([]),
    pickle.APPEND: lambda reader: reader._extend([reader._stack.pop()]),
    pickle.APPENDS: lambda reader: reader._extend(reader._marked()),
    pickle.EMPTY_DICT: lambda reader: reader._push({}),
    pickle.SETITEM: lambda reader: reader._update([reader._stack.pop() for _ in range(2)][::-1]),
    pickle.SETITEMS: lambda reader: reader._update(reader._marked()),
    pickle.MARK: _Reader._mark,
}
"""The instructions that Python's own pickle writer uses for plain values, and no others."""
