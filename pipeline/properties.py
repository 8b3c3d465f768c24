"""Property blocks of many records to Arrow: maps, tags and keys, without an object a property.

Owns the way from `name 0x01 value 0x02` to columns; must not know records. A name that occurs twice
in a block counts with its last value, as everywhere else. Text that is no UTF-8 is returned with
replacement characters, because Arrow and Spark have no other text.
"""

import itertools
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.schema import KEYS, PROPERTIES

Ints = npt.NDArray[np.int64]

_NAME_END: Final = 1
_VALUE_END: Final = 2


class Properties:
    """The properties of records, decoded once for all columns that are made of them."""

    def __init__(self, blocks: bytes, offsets: Ints) -> None:
        """`blocks` lie back to back; the block of record i is `[offsets[i], offsets[i + 1])`."""
        self._count = len(offsets) - 1
        if len(blocks) and not _are_closed(blocks, offsets):
            blocks, offsets = _closed(blocks, offsets)
        self._records, self._names, self._values = _parse(blocks, offsets)

    def maps(self) -> pa.Array:
        """Return all properties, a map a record."""
        bounds = np.searchsorted(self._records, np.arange(self._count + 1)).astype(np.int32)
        return pa.MapArray.from_arrays(bounds, self._names, self._values).cast(PROPERTIES)

    def tags(self) -> pa.Array:
        """Return the tag of each record, null for records without."""
        return self._of_name("TAGS")

    def keys(self) -> pa.Array:
        """Return the keys of each record, an empty list for records without."""
        values = self._of_name("KEYS")
        if values.null_count == self._count:
            bounds = np.zeros(self._count + 1, np.int32)
            return pa.ListArray.from_arrays(bounds, pa.array([], pa.string())).cast(KEYS)
        lists = pc.split_pattern(pc.fill_null(values, ""), " ")
        words = pc.list_flatten(lists)
        is_key = pc.not_equal(words, "").to_numpy(zero_copy_only=False)
        owners = pc.list_parent_indices(lists).to_numpy()[is_key]
        bounds = np.searchsorted(owners, np.arange(self._count + 1)).astype(np.int32)
        return pa.ListArray.from_arrays(bounds, words.filter(pa.array(is_key))).cast(KEYS)

    def _of_name(self, name: str) -> pa.Array:
        """Return the value that each record has under a name."""
        if not len(self._records):
            return pa.nulls(self._count, pa.string())
        chosen = pc.equal(self._names, name).to_numpy(zero_copy_only=False).nonzero()[0]
        places = np.full(self._count, -1, np.int64)
        places[self._records[chosen]] = chosen
        return self._values.take(pa.array(places, mask=places < 0))


def _are_closed(blocks: bytes, offsets: Ints) -> bool:
    """Whether each block ends with 0x02, which RocketMQ may leave out."""
    view = np.frombuffer(blocks, np.uint8)
    filled = offsets[1:] > offsets[:-1]
    return bool((view[offsets[1:][filled] - 1] == _VALUE_END).all())


def _closed(blocks: bytes, offsets: Ints) -> tuple[bytes, Ints]:
    parts = [
        block if not block or block.endswith(b"\x02") else block + b"\x02"
        for block in (blocks[a:b] for a, b in itertools.pairwise(offsets))
    ]
    sizes = np.fromiter(map(len, parts), np.int64, len(parts))
    return b"".join(parts), np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes)))


def _parse(blocks: bytes, offsets: Ints) -> tuple[Ints, pa.Array, pa.Array]:
    """Return the record of each property, its name and its value."""
    view = np.frombuffer(blocks, np.uint8)
    ends = np.flatnonzero(view == _VALUE_END)
    marks = np.flatnonzero(view == _NAME_END)
    if not len(ends) or not len(marks):
        return np.zeros(0, np.int64), pa.array([], pa.string()), pa.array([], pa.string())
    begins = np.concatenate((np.zeros(1, np.int64), ends[:-1] + 1))
    following = np.searchsorted(marks, begins)
    separators = marks[np.minimum(following, len(marks) - 1)]
    # A name and a value, both of them not empty.
    is_good = (following < len(marks)) & (separators > begins) & (separators + 1 < ends)
    begins, separators, ends = begins[is_good], separators[is_good], ends[is_good]
    records = np.searchsorted(offsets, begins, side="right") - 1
    names = text_pieces(blocks, begins, separators)
    values = text_pieces(blocks, separators + 1, ends)
    kept = _last_of_each(records, names)
    if kept is not None:
        records, names, values = records[kept], names.take(kept), values.take(kept)
    return records, names, values


def _last_of_each(records: Ints, names: pa.Array) -> Ints | None:
    """Return the properties that stay when each record has each name once; None: all of them."""
    if not len(records):
        return None
    encoded = names.dictionary_encode()
    identity = records * len(encoded.dictionary) + encoded.indices.to_numpy()
    _, last = np.unique(identity[::-1], return_index=True)
    if len(last) == len(records):
        return None
    return np.sort(len(records) - 1 - last)


def pieces(data: bytes, lo: Ints, hi: Ints) -> pa.Array:
    """Return the pieces [lo, hi) of a buffer, copied together in one call.

    The pieces are in order and do not overlap. The buffer is cut at all ends, and every second
    piece is one of these; so Python makes no objects but two integers a piece.
    """
    count = len(lo)
    bounds = np.empty(2 * count + 1, np.int32)
    bounds[0:-1:2], bounds[1::2] = lo, hi
    bounds[-1] = hi[-1] if count else 0
    every = [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    cut = pa.Array.from_buffers(pa.binary(), 2 * count, every)
    return cut.take(pa.array(np.arange(0, 2 * count, 2)))


def text_pieces(data: bytes, lo: Ints, hi: Ints) -> pa.Array:
    """Return such pieces as text."""
    values = pieces(data, lo, hi)
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        texts: list[Any] = [value.as_py().decode("utf-8", "replace") for value in values]
        return pa.array(texts, pa.string())
