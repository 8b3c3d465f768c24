"""The network engine of gRPC that the processes of `qlog` run on."""

import os
import subprocess
import sys

import pytest

from quorumlog.cluster.grpc_engine import VARIABLE, choose_engine
from tests.patience import PATIENCE_S

_CALLS = """
import asyncio
import os
import sys
from quorumlog.cluster.grpc_engine import choose_engine
if sys.argv[1] == "chosen":
    choose_engine()
import grpc.aio


async def echo(data, context):
    return data


def switches():
    found = 0
    for thread in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{thread}/status") as file:
            lines = dict(line.split(":", 1) for line in file)
        if lines["Name"].strip() == "event_engine":
            found += int(lines["voluntary_ctxt_switches"])
    return found


async def main():
    server = grpc.aio.server()
    handlers = {"Echo": grpc.unary_unary_rpc_method_handler(echo)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("s", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary("/s/Echo")
        await call(b"1")
        before = switches()
        for _ in range(100):
            await call(b"1")
        print(switches() - before)
    await server.stop(0)

asyncio.run(main())
"""


def _thread_switches(which: str) -> int:
    """How often gRPC's own threads were switched to while a client made a hundred calls."""
    arguments = [sys.executable, "-c", _CALLS, which]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert "Unknown experiment" not in done.stderr, "this version of grpcio lost the switch"
    return int(done.stdout)


def test_with_the_older_engine_a_call_needs_no_thread_of_grpc(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    newer, older = _thread_switches("newer"), _thread_switches("chosen")
    assert 2 * older < newer, f"{older} switches instead of {newer}: has grpcio changed?"


def test_an_engine_chosen_before_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "")
    choose_engine()
    assert os.environ[VARIABLE] == ""


def test_another_version_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setattr("quorumlog.cluster.grpc_engine.KNOWN_VERSIONS", '"""0.0.')
    choose_engine()
    assert VARIABLE not in os.environ
