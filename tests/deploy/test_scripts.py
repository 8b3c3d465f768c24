"""The scripts that newcomers run: they parse, find their root, and fail in three useful lines."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ["deploy/venv", "deploy/quickstart", "tests/run", ".ci/run"]
TOOLS = ["bash", "readlink", "dirname", "cksum", "grep", "tail", "cut", "head", "rm"]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Make a checkout that has the set-up and nothing else, in a path with a space."""
    root = tmp_path / "a checkout"
    (root / "deploy").mkdir(parents=True)
    for name in ("deploy/venv", "pyproject.toml", "requirements.lock", "requirements-build.lock"):
        shutil.copy(ROOT / name, root / name)
    return root


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """Make a directory for PATH that has the tools of the scripts and no Python."""
    directory = tmp_path / "bin"
    directory.mkdir()
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found is not None, f"this test needs {tool}"
        (directory / tool).symlink_to(found)
    return directory


def run_venv(checkout: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run deploy/venv of a checkout."""
    return subprocess.run(
        [checkout / "deploy/venv"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def write_python(path: Path, body: str) -> None:
    """Write a stand-in for an interpreter; `body` is shell and sees its arguments."""
    path.write_text(f"#!{shutil.which('bash')}\n{body}\n")
    path.chmod(0o755)


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_are_executable_and_parse(name: str) -> None:
    assert os.access(ROOT / name, os.X_OK)
    subprocess.run(["bash", "-n", ROOT / name], check=True)


def test_no_python_is_said_in_three_lines(checkout: Path, tools: Path) -> None:
    done = run_venv(checkout, PATH=str(tools), PYTHON="")
    assert done.returncode == 3
    lines = done.stderr.splitlines()
    assert lines[0] == "deploy/venv: no Python 3.11 or newer found"
    assert [line[:6] for line in lines[1:]] == ["  why:", "  do: "]


def test_an_old_python_is_refused(checkout: Path, tools: Path) -> None:
    write_python(tools / "python3", "exit 1")
    assert "no Python 3.11" in run_venv(checkout, PATH=str(tools), PYTHON="").stderr
    done = run_venv(checkout, PATH=str(tools), PYTHON="python3")
    assert done.returncode == 3
    assert done.stderr.startswith("deploy/venv: PYTHON=python3 is not usable\n")
    assert len(done.stderr.splitlines()) == 3


def test_a_missing_venv_module_is_said_in_three_lines(checkout: Path, tools: Path) -> None:
    no_venv = '[[ $* != *ensurepip* ]] || exit 1\n[[ $1 != -V ]] || echo "Python 3.11.0"'
    write_python(tools / "python3", no_venv)
    done = run_venv(checkout, PATH=str(tools), PYTHON="")
    assert done.returncode == 3
    lines = done.stderr.splitlines()[1:]  # The first line says what was begun.
    assert lines[0] == "deploy/venv: cannot make a virtual environment"
    assert "Python 3.11.0 has no working venv module" in lines[1]
    assert "apt install python3-venv" in lines[2]


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "what"),
    [
        ("crc.c:1: fatal error: Python.h: No such file", "could not build a package"),
        ("error: command 'gcc' failed: No such file", "could not build a package"),
        ("Retrying: NewConnectionError: refused", "could not download the packages"),
        ("ERROR: hashes do not match", "could not install the packages"),
    ],
)
def test_failures_of_pip_are_told_apart(checkout: Path, words: str, what: str) -> None:
    (checkout / ".venv/bin").mkdir(parents=True)
    says = f'[[ $* != *install* ]] || {{ echo "{words}"; exit 1; }}'
    write_python(checkout / ".venv/bin/python", says)
    done = run_venv(checkout)
    assert done.returncode == 3
    lines = done.stderr.splitlines()[1:]
    assert lines[0] == f"deploy/venv: {what}"
    assert [line[:6] for line in lines[1:]] == ["  why:", "  do: "]
    assert not (checkout / ".venv/.stamp").exists()


def test_a_current_environment_is_left_alone_through_links(tmp_path: Path) -> None:
    link = tmp_path / "a link"
    link.symlink_to(ROOT / "deploy/venv")
    done = subprocess.run([link], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
