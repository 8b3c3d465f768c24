"""What a program left open is stored, or told of with its count, whatever process and thread."""

import asyncio
import sys
from collections import Counter
from pathlib import Path
from subprocess import PIPE

import pytest

from tests.quorumlog.fake_cluster import fake_cluster

_PROGRAM = """
import asyncio, gc, os, signal, sys, threading
import multiprocessing.util
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
import quorumlog
from quorumlog import sync
from quorumlog.cluster.program_end import at_end
from quorumlog.sync.client import on_thread

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
    kept.append(asyncio.create_task(on_thread(lambda _: threading.Event().wait())(None)))
    await asyncio.sleep(0)  # It runs, and never ends.

async def lose():
    client = quorumlog.connect(server)
    await client.start()
    producer = client.producer()
    for _ in range(5):
        producer.send_nowait("orders", b"lost")

def wait_for_ever():
    handed.set()
    threading.Event().wait()

def wait_for_all():
    here, main = threading.current_thread(), threading.main_thread()
    main.join()
    while others := [t for t in threading.enumerate() if not t.daemon and t not in (here, main)]:
        others[0].join()

def work():
    before = threading.active_count()
    with sync.connect(server) as client:
        client.producer().enqueue("orders", "closed")
    assert threading.active_count() == before, threading.enumerate()
    threading.Thread(target=wait_for_all, daemon=False).start()
    kept.append(asyncio.new_event_loop())
    kept[-1].run_until_complete(leave())
    lost = asyncio.new_event_loop()
    lost.run_until_complete(lose())
    lost.close()
    del lost
    gc.collect()
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
    if kind == "multiprocess/fork":  # A copy of the library under another name.
        sys.modules["multiprocess.util"] = sys.modules.pop("multiprocessing.util")
    if kind == "interrupted":
        at_end(lambda: signal.raise_signal(signal.SIGINT))
        work()
    elif kind == "main":
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
    ["main", "interrupted", "fork", "forkserver", "daemon thread/fork", "multiprocess/fork"]
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
    left_open = dict.fromkeys((b"main", b"late", b"pooled", b"daemon"), 300)
    assert stored == {b"closed": 1, **left_open}, said
    assert said.count("3 messages failed and no caller received the error") == 4, said
    assert said.count("7 messages had no receipt") == 1, said
    assert said.count("5 messages had no receipt") == 1, said
    assert said.count("had no receipt") == 2, said
    assert (ended.returncode, "Traceback" in said) == (0, False), said


_LATE = """
import sys
{before}
kept = []
def hand():
    from quorumlog import sync
    with sync.connect(sys.argv[1]) as client:
        client.producer().enqueue("orders", b"closed")
    kept.append(sync.connect(sys.argv[1]))
    kept[0].start()
    kept.append(kept[0].producer())
    for _ in range(300):
        kept[1].enqueue("orders", b"left open")
{register}
"""
_WORKER = """
def work():
    util.Finalize(None, hand, exitpriority=-2_000)
worker = get_context("fork").Process(target=work)
worker.start()
worker.join()
"""
_LIBRARY = "from multiprocessing import get_context, util"
_OUTLIVES = "import threading; main = threading.main_thread()"
_REFUSED = "ClosedError: the program is ending"
_THREAD = "lambda: (other := threading.Thread(target=hand)).start() or other.join()"


@pytest.mark.parametrize(
    ("before", "register", "outcome"),
    [
        ("import quorumlog, atexit", "atexit.register(hand)", "closed"),
        ("import atexit", "atexit.register(hand)", "is imported by __main__.hand"),
        ("import atexit, threading", f"atexit.register({_THREAD})", _REFUSED),
        (_LIBRARY, "util.Finalize(None, hand, exitpriority=-2_000)", _REFUSED),
        (_LIBRARY, _WORKER, "closed"),
        (_OUTLIVES, "threading.Thread(target=lambda: main.join() or hand()).start()", "closed"),
    ],
)
async def test_a_first_client_at_the_end_is_closed_or_not_silent(
    before: str, register: str, outcome: str
) -> None:
    program = _LATE.format(before=before, register=register)
    async with fake_cluster(1) as cluster:
        command = [sys.executable, "-c", program, cluster.bootstrap]
        ended = await asyncio.create_subprocess_exec(*command, stderr=PIPE, cwd=Path.cwd())
        said = (await ended.communicate())[1].decode()
        stored = Counter(cluster.bodies())
    assert stored.pop(b"closed") == 1
    if outcome == "closed":
        assert stored == {b"left open": 300}, said
    else:
        assert outcome in said
        assert not (stored and outcome == _REFUSED)
