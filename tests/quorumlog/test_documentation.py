"""The examples of docs/client.md run as they stand."""

import asyncio
import re
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

import quorumlog
from tests.patience import PATIENCE_S
from tests.quorumlog.fake_cluster import fake_cluster

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
            async with asyncio.timeout(PATIENCE_S):
                await names["example"]()
    assert threading.active_count() < 20
    assert mark or "assert" in code or capsys.readouterr().out
