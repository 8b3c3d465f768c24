"""Keeps what is known of a failure of the long tier: its seed, command, report and files.

Owns the folder of a failure; must not know any test. `./tests/run --all` names the directory in
EVIDENCE_VARIABLE; the gate keeps nothing, since it fails again.
"""

import os
import re
import shutil
from collections.abc import Generator
from pathlib import Path
from typing import Final

import pytest

from tests.seeds import SEED_VARIABLE

EVIDENCE_VARIABLE: Final = "QUORUMLOG_TEST_EVIDENCE"
FILES_SIZE_MAX_BYTES: Final = 256 << 20
"""Limit of the files of one test. Those of a larger one are left out by size, the largest first."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep the evidence of a phase that failed."""
    report = yield
    directory = os.environ.get(EVIDENCE_VARIABLE)
    if directory is not None and report.failed:
        arguments = getattr(item, "funcargs", {})
        keep(Path(directory), item.nodeid, report, arguments.get("tmp_path"))
    return report


def keep(directory: Path, test: str, report: pytest.TestReport, files: Path | None) -> Path:
    """Write the folder of one failure and return it."""
    folder = directory / re.sub(r"[^\w.-]+", "-", test)[:120]
    folder.mkdir(parents=True, exist_ok=True)
    seed = os.environ.get(SEED_VARIABLE)
    again = f"./tests/run --all{f' --seed {seed}' if seed else ''} '{test}'"
    (folder / f"{report.when}.txt").write_text(
        f"{again}\n\n{report.longreprtext}\n"
        + "".join(f"\n--- {title}\n{text}" for title, text in report.sections)
    )
    if files is not None and files.is_dir():
        _copy(files, folder / "files")
    return folder


def _copy(source: Path, target: Path) -> None:
    sizes = {}
    for path in source.rglob("*"):
        if path.is_file() and not path.is_symlink():
            sizes[path] = path.stat().st_size
    total_bytes = 0
    for path in sorted(sizes, key=lambda path: sizes[path]):
        total_bytes += sizes[path]
        if total_bytes > FILES_SIZE_MAX_BYTES:
            break
        kept = target / path.relative_to(source)
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, kept)
