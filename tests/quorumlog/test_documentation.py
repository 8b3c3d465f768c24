"""The examples of docs/client.md and the programs of README and docs/start.md run as they stand."""

import asyncio
import re
import textwrap
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

import quorumlog
from deploy.local import LocalCluster
from store import Store
from tests.quorumlog.fake_cluster import fake_cluster
from tests.store.listing import SMALL_BYTES, disk_size_bytes

DOCUMENT = Path(__file__).parents[2] / "docs" / "client.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", DOCUMENT.read_text("utf-8"), re.M | re.S)
WHOLE = [code for code in EXAMPLES if "connect(" in code]
"""Those that connect; the others have a client and names of the reader, and may go on and on."""


def example(code: str, names: dict[str, Any]) -> Callable[..., Coroutine[Any, Any, None]]:
    """Return an example as a function that takes a client."""
    source = f"async def example(client=None):\n{textwrap.indent(code, '    ')}"
    names |= {"quorumlog": quorumlog}
    exec(compile(source, DOCUMENT.name, "exec"), names)
    function: Callable[..., Coroutine[Any, Any, None]] = names["example"]
    return function


@pytest.mark.parametrize("code", WHOLE)
async def test_an_example_runs(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    async with fake_cluster() as cluster:
        async with quorumlog.connect(cluster.bootstrap) as client:
            producer = client.producer()
            for body in (b"one", b"two", b"done"):
                await producer.send("orders", body)
        here = re.sub(r"127\.0\.0\.1:808\d(,[^\"]*)?", cluster.bootstrap, code)
        function = example(here, {})
        if "with quorumlog.sync" in code:  # It blocks, so it may not run in this loop.
            await asyncio.to_thread(lambda: asyncio.run(function()))
        else:
            await function()
    assert threading.active_count() < 20
    assert "assert" in code or capsys.readouterr().out


@pytest.mark.long
async def test_examples_with_names_of_the_reader_run(tmp_path: Path) -> None:
    """On real nodes, each until it has done what it shows."""
    retries, pops, ends, invoices, killed = (code for code in EXAMPLES if code not in WHOLE)
    invoices = invoices.replace("billing", "books")  # A group that has read nothing yet.
    called = asyncio.Queue[Any]()

    def call(value: Any) -> Any:
        called.put_nowait(value)
        return value

    async def charge(body: bytes) -> None:
        if call(body) in faults:
            raise faults[body]

    async def work(body: bytes) -> bool:
        return bool(call(body) == b"done" or called.qsize() > 2)

    async def until(code: str, names: dict[str, Any], *values: Any) -> None:
        running = asyncio.create_task(example(code, names)(client))
        assert [await called.get() for _ in values] == [*values]
        running.cancel()
        await asyncio.wait([running])

    down, wrong = type("BankIsDown", (Exception,), {}), type("NotAnOrder", (Exception,), {})
    faults = {b"down": down, b"wrong": wrong}
    with LocalCluster.create(tmp_path / "c", 1) as nodes:
        async with quorumlog.connect(nodes.bootstrap) as client:
            for topic in ("orders", "jobs", "invoices"):
                await client.admin.create_topic(topic, queue_count=1)
            producer = client.producer()
            bodies = b"down", b"wrong", b"fine"
            for body in bodies:
                await producer.send("orders", body)
            names = {"charge": charge, "BankIsDown": down, "NotAnOrder": wrong}
            await until(retries, names, *bodies)
            assert [d.message.body for d in await client.admin.dead_letters("billing")] == [
                b"wrong"
            ]
            for body in (b"done", b"late"):
                await producer.send("jobs", body)
            await until(pops, {"work": work}, b"done", b"late", b"late")
            await example(ends, {"pay": call, "is_paid": bool})(client)
            assert await called.get() == "order-17"
            running = asyncio.create_task(example(invoices, {"invoice_of": call})(client))
            written = client.consume("invoices")
            assert [(await anext(written)).body for _ in "1234"] == [*bodies, b"order 17"]
            running.cancel()
            await asyncio.wait([running])
    await example(killed, {})()


PAGES = (DOCUMENT.parents[1] / "README.md", DOCUMENT.with_name("start.md"))
PROGRAMS = [
    program
    for page in PAGES
    for program in re.findall(r"^```python\n(.*?)^```$", page.read_text("utf-8"), re.M | re.S)
]


def run(program: str) -> None:
    exec(compile(program, "README.md", "exec"), {"__name__": "__main__"})


async def test_the_program_with_a_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    program = PROGRAMS[0]
    assert "quorumlog.connect" in program
    async with fake_cluster() as cluster:
        here = program.replace("127.0.0.1:8081", cluster.bootstrap)
        assert here != program
        await asyncio.to_thread(run, here)  # It has a loop of its own.
    assert "order-17 b'one pie'" in capsys.readouterr().out


def test_the_program_with_an_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = PROGRAMS[2]
    assert "Store.open" in program
    monkeypatch.chdir(tmp_path)
    close, open_bytes = Store.close, list[int]()

    def measured_close(store: Store) -> None:
        open_bytes.append(disk_size_bytes(tmp_path))
        close(store)

    monkeypatch.setattr(Store, "close", measured_close)
    run(program)
    assert capsys.readouterr().out == "[0] is durable\nb'hello'\n[b'hello']\n"
    assert max(*open_bytes, disk_size_bytes(tmp_path)) <= SMALL_BYTES


def test_there_is_no_other_program() -> None:
    assert len(PROGRAMS) == 3
