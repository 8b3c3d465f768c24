"""The import contracts of pyproject.toml are read: a forbidden import that is planted breaks them.

That import-linter finds each kind of import is for its own tests to say.
"""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.tidy import repository

CONFIGURATION = (repository.ROOT / "pyproject.toml").read_text()
PACKAGES = tomllib.loads(CONFIGURATION)["tool"]["importlinter"]["root_packages"]
MODULES = [
    name
    for name in repository.files()
    if name.endswith(".py") and name.partition("/")[0] in PACKAGES
]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Make the packages with empty modules, under the contracts of the project."""
    for name in MODULES:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    contracts = CONFIGURATION.index("[tool.importlinter]")
    (tmp_path / "pyproject.toml").write_text(CONFIGURATION[contracts:])
    return tmp_path


def broken_contracts(tree: Path) -> set[str]:
    """Name the contracts that the tree breaks; -I and the path keep the real packages out."""
    program = (
        "import sys; sys.path.insert(0, '.'); from importlinter.cli import lint_imports_command"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"{program}; lint_imports_command(['--no-cache'])"],
        cwd=tree,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Contracts: " in done.stdout, done.stdout + done.stderr
    broken = {
        line.removesuffix(" BROKEN")
        for line in done.stdout.splitlines()
        if line.endswith(" BROKEN")
    }
    assert bool(broken) == (done.returncode != 0)
    return broken


def test_a_planted_import_breaks_its_contract(tree: Path) -> None:
    (tree / "raft/core.py").write_text("def f():\n    import store.reads\n")
    assert broken_contracts(tree) == {"layers of the house"}
