"""The import contracts of pyproject.toml break when a forbidden import is planted."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.tidy import repository

MODULES = [
    "store/__init__.py",
    "store/log.py",
    "raft/__init__.py",
    "raft/core.py",
    "raft/simulator/__init__.py",
    "raft/simulator/history.py",
    "node/__init__.py",
    "node/__main__.py",
    "node/replica.py",
    "quorumlog/__init__.py",
    "quorumlog/client.py",
    "quorumlog/testing.py",
    "quorumlog/pb/__init__.py",
    "quorumlog/pb/log_pb2.py",
    "quorumlog/cli/__init__.py",
    "quorumlog/cli/output.py",
    "quorumlog/cli/store.py",
    "pipeline/__init__.py",
    "pipeline/source.py",
    "pipeline/jobs/__init__.py",
    "pipeline/jobs/history_check.py",
    "pipeline/jobs/audit_command.py",
]

EACH_OTHER = "raft and store never import each other"
BELOW = "raft and store know no server, no client, no network and no event loop"
CLIENT = "quorumlog imports no server code, except in commands of its command line"
COMMAND_LINE = "only the command line imports the command line"
SERVER = "node knows of the client only the generated messages and the version"
ON_TOP = "only commands and quorumlog.testing reach deploy and bench"
TABLES_ON_TOP = "raft, store, node and quorumlog do not import pipeline"
TABLES = "pipeline imports no server, and of raft the checkers of histories only"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Make the packages with empty modules, under the contracts of the project."""
    for name in MODULES:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    configuration = (repository.ROOT / "pyproject.toml").read_text()
    contracts = configuration.index("[tool.importlinter]")
    (tmp_path / "pyproject.toml").write_text(configuration[contracts:])
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("raft/core.py", "import store.log", EACH_OTHER),
        ("store/log.py", "from raft import core", EACH_OTHER),
        ("store/log.py", "import node.replica", BELOW),
        ("raft/core.py", "import quorumlog.client", BELOW),
        ("store/log.py", "def f():\n    import asyncio", BELOW),
        ("raft/core.py", "import grpc.aio", BELOW),
        ("quorumlog/client.py", "import store.log", CLIENT),
        ("quorumlog/client.py", "from node import replica", CLIENT),
        ("quorumlog/cli/__init__.py", "import raft.core", CLIENT),
        ("quorumlog/client.py", "import quorumlog.cli.store", COMMAND_LINE),
        ("node/replica.py", "from quorumlog import client", SERVER),
        ("node/replica.py", "import deploy.local", ON_TOP),
        ("quorumlog/client.py", "def f():\n    from bench import cluster", ON_TOP),
        ("store/log.py", "import tests.store.records", ON_TOP),
        ("pipeline/source.py", "from bench import cluster", ON_TOP),
        ("raft/core.py", "import pipeline", TABLES_ON_TOP),
        ("node/replica.py", "from pipeline import source", TABLES_ON_TOP),
        ("quorumlog/cli/store.py", "import pipeline.source", TABLES_ON_TOP),
        ("pipeline/source.py", "def f():\n    import node.replica", TABLES),
        ("pipeline/source.py", "from raft.simulator import history", TABLES),
        ("pipeline/jobs/history_check.py", "import raft.core", TABLES),
        ("pipeline/source.py", "import quorumlog.cli.store", COMMAND_LINE),
    ],
)
def test_a_planted_import_breaks_a_contract(
    tree: Path, module: str, line: str, contract: str
) -> None:
    (tree / module).write_text(f"{line}\n")
    assert broken_contracts(tree) == {contract}


@pytest.mark.slow
def test_allowed_imports_keep_the_contracts(tree: Path) -> None:
    (tree / "node/replica.py").write_text("import store.log, raft.core, grpc, asyncio\n")
    (tree / "node/__main__.py").write_text("from quorumlog.cli import main\n")
    (tree / "node/log.py").write_text(
        "from quorumlog import __version__\nfrom quorumlog.pb import log_pb2\n"
    )
    (tree / "quorumlog/testing.py").write_text("from deploy.local import LocalCluster\n")
    (tree / "quorumlog/client.py").write_text("import asyncio, grpc\n")
    (tree / "quorumlog/cli/store.py").write_text(
        "import store.log, node, quorumlog.client, deploy, bench\n"
    )
    (tree / "pipeline/source.py").write_text("import store.log, quorumlog.client, pyspark\n")
    (tree / "pipeline/jobs/history_check.py").write_text("from raft.simulator import history\n")
    (tree / "pipeline/jobs/audit_command.py").write_text("import quorumlog.cli.output\n")
    assert broken_contracts(tree) == set()
