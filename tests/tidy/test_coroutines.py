"""Tests that are coroutines run, to their end, and fail as others do."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S
from tests.tidy.repository import ROOT

_CONFTEST = "from tests.coroutines import loop, pytest_pyfunc_call\n"
_PLANTED = """
    import asyncio

    import pytest

    async def test_passes(tmp_path):
        await asyncio.sleep(0)
        assert tmp_path.exists()

    async def test_fails():
        await asyncio.sleep(0)
        assert False

    async def test_complains():
        asyncio.get_running_loop().call_soon(lambda: 1 // 0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    @pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
    async def test_runs_on(loop):
        assert type(asyncio.get_running_loop()).__module__.partition(".")[0] == loop

    async def test_leaves_a_task():
        left.append(asyncio.create_task(asyncio.Event().wait()))

    left = []

    def test_that_the_task_is_cancelled():
        assert left[0].cancelled()
"""


@pytest.mark.long
def test_coroutines_run_and_fail(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(_CONFTEST)
    (tmp_path / "test_it.py").write_text(textwrap.dedent(_PLANTED))
    ran = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-c",
            os.devnull,
            "-p",
            "no:cacheprovider",
            "-rfp",
            ".",
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert "2 failed, 5 passed" in ran.stdout, ran.stdout
    assert "FAILED test_it.py::test_fails - assert False" in ran.stdout
    assert "FAILED test_it.py::test_complains - AssertionError: the loop's" in ran.stdout
