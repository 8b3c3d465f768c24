"""The guard against tests that leave something open finds each kind, and not what gRPC keeps."""

import asyncio
import inspect
import os
import socket
import subprocess
import threading
from pathlib import Path

import grpc.aio
import pytest

from tests import leaks
from tests.leaks import held, left_since, nothing_is_left_behind


def test_files_sockets_and_pipes_are_named_until_they_are_closed(tmp_path: Path) -> None:
    before = held()
    first, second = socket.socketpair()
    reading, writing = os.pipe()
    with (tmp_path / "left open").open("w") as file, first, second:
        numbers = [(f"{tmp_path}/left open", file.fileno()), ("pipe:", reading), ("pipe:", writing)]
        numbers += [("socket:", first.fileno()), ("socket:", second.fileno())]
        assert left_since(before, 0) == sorted(f"descriptor of {k} ({n})" for k, n in numbers)
        os.close(reading)
        os.close(writing)
    assert left_since(before, 0) == []


def test_the_poller_of_grpc_is_none_left_behind() -> None:
    async def hold_channel() -> list[str]:
        before = held()
        async with grpc.aio.insecure_channel("127.0.0.1:1"):
            with socket.socket() as ours:
                left = left_since(before, 0)
                assert f"{ours.fileno()}" in " ".join(left)
            return left_since(before, 0)

    assert asyncio.run(hold_channel()) == []


def test_threads_and_processes_are_named() -> None:
    before, over = held(), threading.Event()
    thread = threading.Thread(target=over.wait, name="sleeper")
    thread.start()
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(b"here\n")  # Right after its start it has no command line yet.
        child.stdin.flush()
        assert child.stdout.readline() == b"here\n"
        left = left_since(before, 0)
        assert "thread sleeper" in left
        assert f"process {child.pid}: cat" in left
        over.set()
        thread.join()
    assert left_since(before, 0) == []


def test_a_resource_released_a_little_later_is_waited_for() -> None:
    before = held()
    reading, writing = os.pipe()

    def close() -> None:
        os.close(reading)
        os.close(writing)

    timer = threading.Timer(0.02, close)
    timer.start()
    assert left_since(before, 30) == []
    timer.join()


def test_a_module_that_leaves_a_file_open_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaks, "PATIENCE_S", 0.0)
    watch = inspect.unwrap(nothing_is_left_behind)(None, None)
    next(watch)
    with (tmp_path / "x").open("w"), pytest.raises(pytest.fail.Exception, match="left behind by"):
        next(watch)
