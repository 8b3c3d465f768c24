"""The scripts that newcomers run: they parse, find their root, and fail in three useful lines."""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ["deploy/setup", "deploy/venv", "deploy/quickstart", "tests/run", ".ci/run"]
LOCKS = ["requirements.lock", "requirements-build.lock"]
TOOLS = [
    "bash",
    "cat",
    "readlink",
    "dirname",
    "cksum",
    "grep",
    "tail",
    "cut",
    "head",
    "rm",
    "mkdir",
]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Make a checkout that has the set-up and nothing else, in a path with a space."""
    root = tmp_path / "a checkout"
    (root / "deploy").mkdir(parents=True)
    for name in ("deploy/venv", "deploy/quickstart", "pyproject.toml", *LOCKS):
        shutil.copy(ROOT / name, root / name)
    return root


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """Make a directory for PATH that has the tools of the scripts and no Python."""
    directory = tmp_path / "bin"
    directory.mkdir()
    for tool in TOOLS:
        path = shutil.which(tool)
        assert path is not None, f"this test needs {tool}"
        (directory / tool).symlink_to(path)
    return directory


def run_venv(checkout: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run deploy/venv of a checkout, or another command there."""
    name, *arguments = command or ("deploy/venv",)
    return subprocess.run(
        [checkout / name, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def write_python(path: Path, body: str) -> None:
    """Write a stand-in for an interpreter; `body` is shell and sees its arguments."""
    path.write_text(f"#!{shutil.which('bash')}\n{body}\n")
    path.chmod(0o755)


PYTHON = """
case "$*" in
    *"-m venv"*) ;;
    *) exec {python} "$@" ;;
esac
{python} "$@" --without-pip
[[ $* != *--without-pip* ]] || exit 0
packages="$(echo "${{@: -1}}"/lib/python*/site-packages)"
for name in pip uv; do
    mkdir "$packages/$name"
    cat >"$packages/$name/__main__.py" <<'END'
{pip}
END
    touch "$packages/$name/__init__.py"
done
"""
"""An interpreter whose environments are real ones but for their pip and uv."""
PIP = """
import os, pathlib, shutil, sys, sysconfig
name = pathlib.Path(__file__).parent.name
if "config" in sys.argv:
    sys.exit(print(os.environ.get("PIP_CONFIG", "")))
with open(os.environ["PIP_CALLS"], "a") as calls:
    calls.write(name + " " + " ".join(sys.argv[1:]) + "\\n")
if words := os.environ.get(f"{name.upper()}_FAILS"):
    sys.exit(words)
if "-r" in sys.argv:
    shutil.copy(sys.argv[-1], os.environ["PIP_CALLS"] + ".pins")
program = pathlib.Path(sys.prefix, "bin", "qlog" if "-e" in sys.argv else "tool")
head = ("#!/bin/sh", f"'''exec' \\"{sys.executable}\\" \\"$0\\" \\"$@\\"", "' '''")
program.write_text("\\n".join((*head, "import sys, helper; print(sys.prefix, helper.WORD)")))
program.chmod(0o755)
if "-e" not in sys.argv:
    program.with_name("native").touch()
    pathlib.Path(sysconfig.get_path("purelib"), "helper.py").write_text("WORD = 'installed'")
"""
"""Installs a script, a module that it needs and another file, or this project; keeps a list, and
the last pins."""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have deploy/venv use the interpreter above; return what its pip was called with."""
    python = f"'{os.path.realpath(sys.executable)}'"
    write_python(tmp_path / "python", PYTHON.format(python=python, pip=PIP))
    monkeypatch.setenv("PYTHON", str(tmp_path / "python"))
    monkeypatch.setenv("PIP_CALLS", str(tmp_path / "calls"))
    (tmp_path / "calls").touch()
    return tmp_path / "calls"


def steps(calls: Path) -> list[str]:
    """Name each call: the installer, and what it installed."""
    lines = [words.split() for words in calls.read_text().splitlines()]
    return [f"{words[0]} {Path(words[-1]).name or '.'}" for words in lines]


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_are_executable_and_parse(name: str) -> None:
    assert os.access(ROOT / name, os.X_OK)
    subprocess.run(["bash", "-n", ROOT / name], check=True)


@pytest.mark.parametrize(
    ("python", "said"),
    [("", "no Python 3.11 or newer found"), ("python3", "PYTHON=python3 is not usable")],
)
def test_no_python_and_an_old_one_are_said_in_three_lines(
    checkout: Path, tools: Path, python: str, said: str
) -> None:
    write_python(tools / "python3", "exit 1")
    done = run_venv(checkout, PATH=str(tools), PYTHON=python)
    assert done.returncode == 3
    lines = done.stderr.splitlines()
    assert lines[0] == f"deploy/venv: {said}"
    assert [line[:6] for line in lines[1:]] == ["  why:", "  do: "]


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
def test_failures_of_pip_are_told_apart(checkout: Path, calls: Path, words: str, what: str) -> None:
    done = run_venv(checkout, PIP_FAILS=words)
    assert done.returncode == 3
    lines = done.stderr.splitlines()[1:]
    assert lines[0] == f"deploy/venv: {what}"
    assert [line[:6] for line in lines[1:]] == ["  why:", "  do: "]
    assert not (checkout / ".venv/.stamp").exists()
    assert run_venv(checkout).returncode == 0
    assert [*steps(calls)[-3:]] == ["pip requirements-build.lock", "uv installed.lock.new", "pip ."]


def test_a_checkout_has_packages_of_its_own_and_installs_them_once(
    checkout: Path, calls: Path
) -> None:
    done = run_venv(checkout)
    assert done.returncode == 0, done.stderr
    ran = subprocess.run([checkout / ".venv/bin/tool"], capture_output=True, text=True, check=True)
    assert ran.stdout == f"{checkout}/.venv installed\n"
    with (checkout / "pyproject.toml").open("a") as project:
        project.write("# another\n")
    assert run_venv(checkout).returncode == 0
    assert steps(calls) == [
        "pip requirements-build.lock", "uv installed.lock.new", "pip .", "pip ."
    ]  # fmt: skip
    said = calls.read_text().splitlines()
    assert "--offline" in said[1], "what another checkout installed is taken"
    assert "--no-index" in said[-1], "with the packages there the network is not asked"
    assert sum("--require-hashes" in words for words in said) == 2


@pytest.mark.parametrize(
    ("setting", "attempts"),
    [
        ({"PIP_CONFIG": "global.index-url='file:///a'"}, ["pip installed.lock.new"]),
        ({"PIP_CONFIG": "global.cert='/a'"}, ["uv installed.lock.new"]),
        ({"UV_FAILS": "no wheel"}, [*["uv installed.lock.new"] * 2, "pip installed.lock.new"]),
    ],
)
def test_pip_installs_where_it_has_an_index_of_its_own_or_uv_fails(
    checkout: Path, calls: Path, setting: dict[str, str], attempts: list[str]
) -> None:
    done = run_venv(checkout, **setting)
    assert done.returncode == 0, done.stderr
    assert steps(calls) == ["pip requirements-build.lock", *attempts, "pip ."]


@pytest.mark.long
def test_packages_are_made_again_for_other_pins_and_elsewhere(
    checkout: Path, calls: Path, tmp_path: Path
) -> None:
    assert run_venv(checkout).returncode == 0
    for lock in LOCKS:
        with (checkout / lock).open("a") as pins:
            pins.write("# another\n")
        (checkout / ".venv/bin/left").touch()
        assert run_venv(checkout).returncode == 0
        assert not (checkout / ".venv/bin/left").exists()
    moved = checkout.rename(tmp_path / "moved")
    assert run_venv(moved).returncode == 0
    assert len(calls.read_text().splitlines()) == 12


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def closure(names: list[str]) -> set[str]:
    """Name distributions and all that these need with Python 3.11, as their own metadata says."""
    names_needed: set[str] = set()
    todo = [Requirement(name) for name in names]
    while todo:
        name = canonical(todo.pop().name)
        if name not in names_needed:
            names_needed.add(name)
            needs = map(Requirement, importlib.metadata.requires(name) or [])
            oldest = {"extra": "", "python_version": "3.11", "python_full_version": "3.11.0"}
            todo += [n for n in needs if n.marker is None or n.marker.evaluate(oldest)]
    return names_needed


def test_quickstart_installs_what_a_cluster_needs_and_no_more(checkout: Path, calls: Path) -> None:
    done = run_venv(checkout, "deploy/quickstart", "--setup")
    assert done.returncode == 0, done.stderr
    assert steps(calls) == [
        "pip requirements-build.lock", "uv installed.lock.new", "pip ."
    ]  # fmt: skip
    pins = re.findall(r"^([\w.-]+)==", calls.with_suffix(".pins").read_text(), re.M)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(map(canonical, pins)) == closure(project["dependencies"])
    assert not {"pyspark", "pytest", "mypy", "matplotlib", "numpy"} & set(pins)
    assert f"installing {len(pins)} pinned packages" in done.stderr
    activate = done.stdout.splitlines()[-1].strip()
    shell = ["bash", "-c", f"{activate}; type -p qlog"]
    found = subprocess.run(shell, capture_output=True, text=True, check=True)
    assert found.stdout == f"{checkout}/.venv/bin/qlog\n"
    assert len(calls.read_text().splitlines()) == 3, "it installs nothing"


@pytest.mark.long
def test_an_environment_with_all_packages_stays_one(checkout: Path, calls: Path) -> None:
    for command, installed in [
        (["deploy/quickstart", "--setup"], 3),
        (["deploy/venv"], 3),
        (["deploy/quickstart", "--setup"], 0),
    ]:
        calls.write_text("")
        done = run_venv(checkout, *command)
        assert done.returncode == 0, done.stderr
        assert len(calls.read_text().splitlines()) == installed
    with (checkout / "requirements.lock").open("a") as lock:
        lock.write("# another\n")
    assert run_venv(checkout, "deploy/quickstart", "--setup").returncode == 0
    assert "\npytest==" in calls.with_suffix(".pins").read_text()


def test_an_unknown_option_is_refused(checkout: Path, calls: Path) -> None:
    done = run_venv(checkout, "deploy/venv", "--run-time")
    assert done.returncode == 3
    assert done.stderr.startswith("deploy/venv: --run-time is no option\n")
    assert calls.read_text() == ""


def test_a_current_environment_is_left_alone_through_links(tmp_path: Path) -> None:
    link = tmp_path / "a link"
    link.symlink_to(ROOT / "deploy/venv")
    done = subprocess.run([link], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    "words",
    ["--shard Z", "--shard", "--seed", "--all --seed x", "--seed 1", "--hours 1"]
    + [f"--all --hours {hours}" for hours in ("0", "0.0", "-1", "x", "nan", "")],
)
def test_a_run_of_the_tests_refuses_in_three_lines_before_set_up(
    words: str, tmp_path: Path
) -> None:
    (tmp_path / "tests").mkdir()
    script = shutil.copy(ROOT / "tests/run", tmp_path / "tests/run")
    done = subprocess.run([script, *words.split()], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    lines = done.stderr.splitlines()
    assert lines[0].startswith("tests/run: ")
    assert [line[:6] for line in lines[1:]] == ["  why:", "  do: "]
