"""What a program left open is stored, or told of with its count, whatever process and thread."""

import asyncio
import sys
from collections import Counter
from pathlib import Path
from subprocess import PIPE

import pytest

from tests.quorumlog.fake_cluster import fake_cluster

_PROGRAM = """
import asyncio, os, sys, threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
import quorumlog
from quorumlog import sync

server, kind = sys.argv[1:]
start = os.path.basename(kind)  # The start method.
kept, handed = [], threading.Event()

def hand(name, wait=None, then=None):
    if wait:
        wait()
    kept.append(client := sync.connect(server))
    client.start()
    producer = client.producer()
    for _ in range(300):
        producer.enqueue("orders", name)
    for _ in range(3):
        producer.enqueue("none", name)
    if then:
        then()

async def leave():
    kept.append(client := quorumlog.connect(server))
    await client.start()
    producer = client.producer()
    for _ in range(7):
        producer.send_nowait("orders", b"left")

def wait_for_ever():
    handed.set()
    threading.Event().wait()

def work():
    kept.append(asyncio.new_event_loop())
    kept[-1].run_until_complete(leave())
    kept.append(ThreadPoolExecutor())
    kept[-1].submit(hand, "pooled")
    hand("main")
    late = "late", threading.main_thread().join
    threading.Thread(target=hand, args=late, daemon=False).start()
    daemon = "daemon", None, wait_for_ever
    threading.Thread(target=hand, args=daemon, daemon=True).start()
    handed.wait()

def make():
    if "executor" in kind:
        with ProcessPoolExecutor(1, get_context(start)) as executor:
            executor.submit(work).result()
    elif "pool" in kind:
        pool = get_context(start).Pool(1)
        pool.apply(work)
        pool.close()
        pool.join()
    else:
        worker = get_context(start).Process(target=work)
        worker.start()
        worker.join()

if __name__ == "__main__":
    if kind == "main":
        work()
        if os.fork():  # A fork of clients ends without a word about them.
            os.wait()
    elif "daemon thread" in kind:
        forker = threading.Thread(target=make, daemon=True)
        forker.start()
        forker.join()
    else:
        make()
"""


LONG = ("spawn", "executor/fork", "executor/spawn", "pool/fork")


@pytest.mark.parametrize(
    "kind",
    ["main", "fork", "forkserver", "daemon thread/fork"]
    + [pytest.param(kind, marks=pytest.mark.long) for kind in LONG],
)
async def test_what_a_program_left_open_is_stored_or_told_of(kind: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM)
    async with fake_cluster(1) as cluster:
        command = [sys.executable, str(program), cluster.bootstrap, kind]
        ended = await asyncio.create_subprocess_exec(*command, stderr=PIPE, cwd=Path.cwd())
        said = (await ended.communicate())[1].decode()
        stored = Counter(cluster.bodies())
    assert stored == dict.fromkeys((b"main", b"late", b"pooled", b"daemon"), 300), said
    assert said.count("3 messages failed and no caller received the error") == 4, said
    assert said.count("7 messages had no receipt") == 1, said
    assert said.count("had no receipt") == 1, said
    assert ended.returncode == 0, said
