"""The import contracts of pyproject.toml break when a forbidden import is planted."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.tidy import repository

PACKAGES = ("store", "raft", "node", "quorumlog", "pipeline", "campaign")
MODULES = [
    name
    for name in repository.files()
    if name.endswith(".py") and name.partition("/")[0] in PACKAGES
]

EACH_OTHER = "raft and store never import each other"
BELOW = "raft and store know no server, no client, no network and no event loop"
CLIENT = "quorumlog imports no server code, except in commands of its command line"
COMMAND_LINE = "only the command line imports the command line"
SERVER = "node knows of the client only the generated messages and the version"
ON_TOP = "only commands and quorumlog.testing reach deploy and bench"
TABLES_ON_TOP = "raft, store, node and quorumlog do not import pipeline"
TABLES = "pipeline imports no server, and of raft the checkers of histories only"
OF_CLIENT = "layers of quorumlog"
DERIVED = "layers of derived files"
REPLICATION = "layers of replication"
RULES = "rules, disk and link of master-slave mode know no shell"
DIRECTORY = "layers of the name server"


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


@pytest.mark.long
@pytest.mark.parametrize(
    ("module", "line", "contracts"),
    [
        ("raft/core.py", "import store.reads", {EACH_OTHER}),
        ("store/reads.py", "from raft import core", {EACH_OTHER}),
        ("store/reads.py", "import node.node", {BELOW}),
        ("raft/core.py", "import quorumlog.client", {BELOW}),
        ("raft/simulator/runner.py", "import node.node", {BELOW}),
        ("store/reads.py", "def f():\n    import asyncio", {BELOW}),
        ("raft/core.py", "import grpc.aio", {BELOW}),
        ("quorumlog/client.py", "import store.reads", {CLIENT}),
        ("quorumlog/client.py", "from node import node", {CLIENT}),
        ("quorumlog/client.py", "import raft.core", {CLIENT}),
        ("quorumlog/client.py", "import quorumlog.cli.server.store", {COMMAND_LINE, OF_CLIENT}),
        ("node/node.py", "from quorumlog import client", {SERVER}),
        ("node/node.py", "import deploy.local", {ON_TOP}),
        ("quorumlog/client.py", "def f():\n    from bench import cluster", {ON_TOP}),
        ("store/reads.py", "import tests.store.records", {ON_TOP}),
        ("pipeline/source.py", "from bench import cluster", {ON_TOP}),
        ("raft/core.py", "import pipeline", {TABLES_ON_TOP}),
        ("node/node.py", "from pipeline import source", {TABLES_ON_TOP}),
        ("quorumlog/cli/server/store.py", "import pipeline.source", {TABLES_ON_TOP}),
        ("pipeline/source.py", "def f():\n    import node.node", {TABLES}),
        ("pipeline/source.py", "from raft.histories import history", {TABLES}),
        ("pipeline/jobs/history_check.py", "import raft.core", {TABLES}),
        ("pipeline/source.py", "import quorumlog.cli.server.store", {COMMAND_LINE}),
        ("raft/state/state.py", "import raft.rules.leader", {"layers of raft"}),
        ("store/files/zeros.py", "import store.record.message", {"layers of store"}),
        ("store/derived/keys/index_file.py", "import store.derived.guard", {DERIVED}),
        ("store/fsck/types.py", "import store.fsck.checks.log", {"layers of fsck"}),
        ("node/state/state.py", "import node.broker.broker", {"layers of node"}),
        ("node/broker/core/context.py", "import node.broker.pop.pop", {"layers of broker"}),
        ("node/replication/lives.py", "import node.replication.raft.driver", {REPLICATION}),
        ("node/replication/ha/core/machine.py", "import node.replication.ha.link.link", {RULES}),
        ("node/nameserver/directory/groups.py", "import node.nameserver.calls", {DIRECTORY}),
        ("quorumlog/records/batch.py", "import quorumlog.produce.producer", {OF_CLIENT}),
        ("quorumlog/capacity/plan.py", "import quorumlog.errors", {OF_CLIENT}),
        ("quorumlog/capacity/plan.py", "import store.format", {CLIENT}),
    ],
)
def test_a_planted_import_breaks_a_contract(
    tree: Path, module: str, line: str, contracts: set[str]
) -> None:
    (tree / module).write_text(f"{line}\n")
    assert broken_contracts(tree) == contracts


def test_allowed_imports_keep_the_contracts(tree: Path) -> None:
    (tree / "node/node.py").write_text("import store.store, raft.core, grpc, asyncio\n")
    (tree / "node/__main__.py").write_text("from quorumlog.cli import main\n")
    (tree / "node/lifecycle.py").write_text(
        "from quorumlog.version import __version__\nfrom quorumlog.pb import log_pb2\n"
    )
    (tree / "quorumlog/testing.py").write_text("from deploy.local import LocalCluster\n")
    (tree / "quorumlog/client.py").write_text("import asyncio, grpc\n")
    (tree / "quorumlog/cli/server/store.py").write_text(
        "import store.reads, node, quorumlog.client, deploy, bench\n"
    )
    (tree / "pipeline/source.py").write_text("import store.reads, quorumlog.client, pyspark\n")
    (tree / "pipeline/jobs/history_check.py").write_text("from raft.histories import history\n")
    (tree / "pipeline/jobs/audit_command.py").write_text("import quorumlog.cli.output\n")
    assert broken_contracts(tree) == set()
