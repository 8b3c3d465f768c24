"""The examples of docs/client.md and the programs of README and docs/start.md run as they stand."""

import asyncio
import re
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

import quorumlog
from store import Store
from tests.quorumlog.fake_cluster import fake_cluster
from tests.store.listing import SMALL_BYTES, disk_size_bytes

DOCUMENT = Path(__file__).parents[2] / "docs" / "client.md"
EXAMPLES = re.findall(r"^```python( no-run)?\n(.*?)^```$", DOCUMENT.read_text("utf-8"), re.M | re.S)


def test_all_examples_are_run_but_those_that_are_marked() -> None:
    assert len(EXAMPLES) == 11
    assert [bool(mark) for mark, _ in EXAMPLES].count(True) == 3


@pytest.mark.parametrize("i", range(11))
async def test_an_example_runs(i: int, capsys: pytest.CaptureFixture[str]) -> None:
    mark, code = EXAMPLES[i]
    source = "import quorumlog\nasync def example():\n" + textwrap.indent(code, "    ")
    async with fake_cluster() as cluster:
        async with quorumlog.connect(cluster.bootstrap) as client:
            producer = client.producer()
            for body in (b"one", b"two", b"done"):
                await producer.send("orders", body)
        here = re.sub(r"127\.0\.0\.1:808\d(,[^\"]*)?", cluster.bootstrap, source)
        names: dict[str, Any] = {}
        exec(compile(here, f"{DOCUMENT.name} example {i}", "exec"), names)
        if mark:
            return
        if "with quorumlog.sync" in code:  # It blocks, so it may not run in this loop.
            await asyncio.to_thread(lambda: asyncio.run(names["example"]()))
        else:
            await names["example"]()
    assert threading.active_count() < 20
    assert mark or "assert" in code or capsys.readouterr().out


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
