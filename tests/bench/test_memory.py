"""Free memory is touched, within its limit, and given back."""

import os
import resource

import psutil
import pytest

from bench.memory import touch_free_memory

_MIB = 1 << 20


def _peak_size_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def test_memory_is_touched_and_given_back() -> None:
    process = psutil.Process(os.getpid())
    before = process.memory_info().rss
    touch_free_memory(256 * _MIB)
    assert _peak_size_bytes() >= before + 250 * _MIB
    assert process.memory_info().rss < before + 64 * _MIB


def test_most_of_the_free_memory_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    class Chunk:
        def close(self) -> None:
            pass

    def chunk(fd: int, size_bytes: int, flags: int) -> Chunk:
        sizes.append(size_bytes)
        return Chunk()

    monkeypatch.setattr("bench.memory.mmap.mmap", chunk)
    free = psutil.virtual_memory()._replace(free=1024 * _MIB)
    monkeypatch.setattr("bench.memory.psutil.virtual_memory", lambda: free)
    touch_free_memory(1 << 40)
    assert sum(sizes) == 512 * _MIB
