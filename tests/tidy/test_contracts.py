"""The import contracts of pyproject.toml are read: a forbidden import that is planted breaks them.

That import-linter finds each kind of import is for its own tests to say.
"""

import subprocess
import sys
import tomllib
from pathlib import Path

from tests.tidy import repository

CONFIGURATION = (repository.ROOT / "pyproject.toml").read_text()
PACKAGES = tomllib.loads(CONFIGURATION)["tool"]["importlinter"]["root_packages"]
MODULES = [
    name
    for name in repository.files()
    if name.endswith(".py") and name.partition("/")[0] in PACKAGES
]


def test_a_planted_import_breaks_its_contract(tmp_path: Path) -> None:
    """In the packages with empty modules; -I and the path keep the real ones out."""
    for name in MODULES:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    contracts = CONFIGURATION.index("[tool.importlinter]")
    (tmp_path / "pyproject.toml").write_text(CONFIGURATION[contracts:])
    (tmp_path / "raft/core.py").write_text("def f():\n    import store.reads\n")
    program = (
        "import sys; sys.path.insert(0, '.'); from importlinter.cli import lint_imports_command"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"{program}; lint_imports_command(['--no-cache'])"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    broken = [line for line in done.stdout.splitlines() if line.endswith(" BROKEN")]
    assert broken == ["layers of the house BROKEN"], done.stdout + done.stderr
    assert done.returncode != 0
