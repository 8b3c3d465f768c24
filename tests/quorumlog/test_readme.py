"""The programs of README.md run as they stand, but for the address."""

import asyncio
import re
from pathlib import Path

import pytest

from tests.quorumlog.fake_cluster import fake_cluster

README = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
PROGRAMS = re.findall(r"^```python\n(.*?)^```$", README, re.M | re.S)


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
    small = "StoreConfig(file_size_bytes=1 << 20)"  # The default would take gigabytes here.
    here = program.replace('Store.open("data")', f'Store.open("data", {small})')
    run(f"from store.config import StoreConfig\n{here}")
    assert "[0] is durable\nb'hello'\n" in capsys.readouterr().out


def test_there_is_no_other_program() -> None:
    assert len(PROGRAMS) == 3
