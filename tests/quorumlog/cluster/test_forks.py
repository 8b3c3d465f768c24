"""Forks of a process with a busy client: each ends in order, whatever gRPC does at that moment."""

import asyncio
import os
import sys
from subprocess import PIPE

import pytest

from quorumlog.cluster.forks import HANDLERS_VARIABLE
from tests.quorumlog.fake_cluster import fake_cluster

_FORK_COUNT = 5  # With its handlers gRPC logs at most, and starts threads or crashes at some.
_PROGRAM = """
import os, sys, threading
from quorumlog import sync
client = sync.connect(sys.argv[1])
client.start()
producer = client.producer()
def work():
    while True:
        producer.send("orders", b"one")
        client.admin.list_topics()
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
for _ in range(int(sys.argv[2])):
    producer.send("orders", b"one")
    child = os.fork()
    if not child:
        sys.exit(len(os.listdir("/proc/self/task")) - 1)
    if status := os.waitpid(child, 0)[1]:
        print("a fork ended with", status, file=sys.stderr)
os._exit(0)
"""

_UNSEEN = """
import ctypes, os, sys
from quorumlog import errors, sync
os.getpid = os.getppid = lambda: 1  # As in containers.
client = sync.connect(sys.argv[1])
client.start()
producer = client.producer()
producer.send("orders", b"one")
def is_refused(call):
    try:
        call()
    except errors.ClosedError as error:
        return error.code == "client.forked"
for fork in (os.fork, ctypes.PyDLL(None).fork):  # C code calls no hook of Python.
    if not (child := fork()):
        calls = lambda: producer.send("orders", b"two"), client.close, lambda: sync.connect("a:1")
        os._exit(not all(map(is_refused, calls)))
    if status := os.waitpid(child, 0)[1]:
        sys.exit(f"{fork} ended with {status}")
"""


async def test_a_fork_is_known_without_a_hook_and_by_no_process_id() -> None:
    async with fake_cluster(1) as cluster:
        program = (sys.executable, "-c", _UNSEEN, cluster.bootstrap)
        ended = await asyncio.create_subprocess_exec(*program, stderr=PIPE)
        said = (await ended.communicate())[1].decode()
    assert (ended.returncode, said) == (0, "")


@pytest.mark.parametrize("first", ["", "import grpc\n"])
async def test_a_fork_that_has_no_client_ends_in_order(first: str) -> None:
    count = 1 if first else _FORK_COUNT
    environment = {k: v for k, v in os.environ.items() if k != HANDLERS_VARIABLE}
    async with fake_cluster(1) as cluster:
        program = (sys.executable, "-c", first + _PROGRAM, cluster.bootstrap, str(count))
        ended = await asyncio.create_subprocess_exec(*program, stderr=PIPE, env=environment)
        said = (await ended.communicate())[1].decode()
    assert ended.returncode == 0, said
    if first:  # Nothing can be turned off any more.
        assert f"set {HANDLERS_VARIABLE}=0" in said
    else:
        assert not said
