"""Free memory is touched, within its limit, and given back."""

import mmap

import psutil
import pytest

from bench.memory import touch_free_memory

_MIB = 1 << 20


def test_half_of_the_free_memory_is_touched_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    closed: list[int] = []

    class Chunk:
        def __init__(self, fd: int, size_bytes: int, flags: int) -> None:
            assert (fd, flags & mmap.MAP_POPULATE) == (-1, mmap.MAP_POPULATE)
            sizes.append(size_bytes)

        def close(self) -> None:
            closed.append(len(sizes))

    monkeypatch.setattr("bench.memory.mmap.mmap", Chunk)
    free = psutil.virtual_memory()._replace(free=1024 * _MIB)
    monkeypatch.setattr("bench.memory.psutil.virtual_memory", lambda: free)
    touch_free_memory(1 << 40)
    assert sum(sizes) == 512 * _MIB
    assert closed == [len(sizes)] * len(sizes), "pages are held until all are touched"
