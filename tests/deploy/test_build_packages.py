"""Both wheels in clean environments outside of the checkout, on each Python that is here."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.build_packages import _OF_SERVER as OF_SERVER
from tests import missing

ROOT = Path(__file__).parents[2]
PROGRAM = re.findall(
    r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text("utf-8"), re.M | re.S
)[0]
FIXTURE = re.findall(
    r"^```py\n(def test_orders\(quorumlog_cluster.*?)^```$",
    (ROOT / "docs/client.md").read_text("utf-8"),
    re.M | re.S,
)[0]
MISSING = "the server of QuorumLog is not installed, and this needs it"


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheels by the name of their distribution; sdists lie beside them."""
    out = tmp_path_factory.mktemp("packages")
    command = [sys.executable, "-P", "-m", "deploy.build_packages", str(out)]
    subprocess.run(command, cwd=ROOT, check=True)
    assert len(list(out.glob("quorumlog*.tar.gz"))) == 2
    return {path.name.partition("-")[0]: path for path in out.glob("*.whl")}


def python(version: str) -> str:
    """Return a Python of this version, from PATH or of pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = map(str, pyenv.glob(f"{version}.*/bin/python{version}"))
    for candidate in (shutil.which(f"python{version}"), *found):
        command = [candidate or "false", "-c", "import venv"]
        if subprocess.run(command, check=False, capture_output=True).returncode == 0:
            return command[0]
    return missing.program(f"there is no Python {version}")


class Installed:
    """An environment, and a directory of an application that has names of ours on its path."""

    def __init__(self, base: str, directory: Path) -> None:
        self.bin, self.app = directory / "venv" / "bin", directory / "app"
        subprocess.run([base, "-m", "venv", str(self.bin.parent)], check=True)
        (self.app / "deploy").mkdir(parents=True)
        for name in ("store.py", "node.py", "deploy/__init__.py"):
            (self.app / name).write_text("raise SystemExit('a module of the application')\n")
        paths = {"QUORUMLOG_LOCAL_DIR": str(directory / "cluster"), "PYTHONPATH": str(self.app)}
        self.environment = {**os.environ, **paths}

    def run(self, name: str, *words: str, code: int = 0) -> str:
        """Run a program of the environment; return its stdout, or stderr if it has to fail."""
        done = subprocess.run(
            [str(self.bin / name), *words],
            cwd=self.app,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stderr if code else done.stdout

    def install(self, package: str | Path) -> None:
        try:
            self.run("pip", "install", "-q", str(package))
        except AssertionError as error:
            missing.foreign(f"pip cannot install {package}: {error}")


@pytest.fixture(params=["3.11", "3.12", "3.13", "3.14"])
def installed(
    request: pytest.FixtureRequest, wheels: dict[str, Path], tmp_path: Path
) -> Iterator[Installed]:
    """With the distribution of clients; nodes that the test starts end with it."""
    here = Installed(python(request.param), tmp_path)
    here.install(wheels["quorumlog"])
    yield here
    if (tmp_path / "cluster").exists():
        here.run("qlog", "local", "stop")


@pytest.mark.parametrize(
    ("words", "code", "what"),
    [
        (["--help"], 0, ""),
        ([], 2, "Missing argument 'OUT'.\n  why: .+"),
        (["file"], 2, "Invalid value for 'OUT': Directory 'file' is a file.\n  why: .+"),
        (["file/out"], 3, "file/out: Not a directory\n  why: .+"),
        (["out"], 3, "the distribution of the client cannot be built\n  why: .+no room"),
    ],
)
def test_a_failed_build_says_why(words: list[str], code: int, what: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "setuptools.py").write_text("raise SystemExit('no room')")
    command = [sys.executable, "-P", "-m", "deploy.build_packages", *words]
    variables = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, check=False)
    error = f"error: {what}\n  do:  .+\n$" if code else "^$"
    assert done.returncode == code
    assert re.search(error, done.stderr.decode())
    assert not (tmp_path / "--help").exists()


def test_no_text_of_the_client_names_a_page_that_it_has_not() -> None:
    """Help, errors and docstrings; comments and the docstrings of modules are for the checkout."""
    apart = (*(f"{name}/" for name in OF_SERVER), "qlog/reference.py")
    named = list[str]()
    for path in [*ROOT.glob("qlog/**/*.py"), *ROOT.glob("quorumlog/**/*.py")]:
        if not str(path.relative_to(ROOT)).startswith(apart):
            parts = ast.parse(path.read_text("utf-8")).body[1:]
            nodes = [node for part in parts for node in ast.walk(part)]
            texts = [str(node.value) for node in nodes if isinstance(node, ast.Constant)]
            named += [f"{path}: {text}" for text in texts if "docs/" in text]
    assert named == []


@pytest.mark.long
def test_the_wheels_are_a_client_and_then_a_cluster(
    installed: Installed, wheels: dict[str, Path]
) -> None:
    help_text = installed.run("qlog", "--help")
    for words in ("local start", "cluster rebalance", "rocketmq import", "serve --print-unit"):
        lines = installed.run("qlog", *words.split(), code=3).splitlines()
        assert lines[0] == f"error: {MISSING}"
        assert len(lines) == 3
        assert "wheel of quorumlog-server" in lines[2]
    assert "retryable" in installed.run("qlog", "explain", "node.busy")
    assert "local start" not in installed.run("qlog", "topic", "list", "--timeout", "1s", code=3)
    opened = "import quorumlog.testing as t; t.sync_cluster().__enter__()"
    said = installed.run("python", "-c", opened, code=1).splitlines()[-1]
    assert said.startswith(f"quorumlog.errors.QuorumlogError: {MISSING}; install the wheel of ")
    shell = ("_QLOG_COMPLETE=bash_complete", "COMP_WORDS=qlog lo", "COMP_CWORD=1")
    assert installed.run("/usr/bin/env", *shell, str(installed.bin / "qlog")) == "plain,local\n"

    installed.install(wheels["quorumlog_server"])
    assert "quorumlog-server" in help_text
    assert "quorumlog-server" not in installed.run("qlog", "--help")
    program = rf"^ExecStart={installed.bin}/python\S* -P -m qlog serve --config /"
    assert re.search(program, installed.run("qlog", "serve", "--print-unit"), re.M)
    nodes = json.loads(installed.run("qlog", "local", "start", "-o", "json"))
    assert len(nodes) == 3
    servers = ",".join(node["address"] for node in nodes)
    script = installed.app / "program.py"
    for topic in ("pies", "tarts"):
        script.write_text(PROGRAM.replace("127.0.0.1:8081", servers).replace("pies", topic))
        assert "order-17 b'one pie'" in installed.run("python", str(script))
        assert "topic" in installed.run("qlog", "topic", "describe", topic)  # By local.json.
        if topic == "pies":
            installed.run("qlog", "local", "kill", "--leader")
    for name in ("node", "store", "deploy"):
        said = installed.run("python", "-PE", "-c", f"import {name}", code=1)
        assert f"No module named '{name}'" in said

    installed.install("pytest")
    (installed.app / "test_own.py").write_text(FIXTURE)
    own = ("-m", "pytest", "-q", "-k", "test_orders", "test_own.py")  # The other needs a plugin.
    assert "1 passed" in installed.run("python", *own)
