"""Builds two distributions, clients and server: `python -m deploy.build_packages OUT`.

Owns what each of them has: `quorumlog` the SDK and the commands of clients, `quorumlog-server` the
rest, in one folder of one package, so that applications cannot import `node` or `store` by mistake.
Everything else is said in pyproject.toml, whose own distribution has all of it. Builds need the
packages of requirements-build.lock.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click

from deploy.jobs.job_summary import job_progress, run_job_command
from quorumlog.command_errors import CliError
from quorumlog.version import __version__

_ROOT: Final = Path(__file__).resolve().parents[1]
_OF_CLIENTS: Final = ("click", "grpcio", "protobuf", "rich")
_FAST: Final = ("isal", "uvloop")
"""What a client uses when it is there."""
_OF_SERVER: Final = (
    *("bench", "checkers", "deploy", "node", "pipeline", "planning", "raft", "store"),
    *("qlog/console", "qlog/rocketmq", "qlog/server", "chaos-tests/chaos"),
)
_OMITTED: Final = shutil.ignore_patterns("__pycache__", "results", "build_packages.py")
_PACKAGE: Final = '''"""The server of QuorumLog: `python -m quorumlog_server` has all of `qlog`.

Its modules are no packages of applications; they are in `modules`, which only that program reads.
"""
'''
_PROGRAM: Final = '''"""Runs `qlog` with the server's modules, which come before those of others."""

import os
import sys
from pathlib import Path

_MODULES = str(Path(__file__).with_name("modules"))

if __name__ == "__main__":
    sys.path.insert(0, _MODULES)
    # Nodes, loads and the workers of Spark are processes of their own.
    _PATHS = (_MODULES, os.environ.get("PYTHONPATH"))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, _PATHS))
    from qlog import main

    main(prog_name="qlog")
'''


def _of(requirements: list[str], names: tuple[str, ...]) -> list[str]:
    """Return the requirements of these packages, each of which has one."""
    found = [line for line in requirements if line.rpartition(">=")[0] in names]
    assert len(found) == len(names), f"pyproject.toml lacks one of {names}"
    return found


def _client(project: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `project` of `quorumlog`; the extras of the server bring the server."""
    extras = project["optional-dependencies"]
    server = f"quorumlog-server=={__version__}"
    of_server = {name: [server.replace("==", f"[{name}]==")] for name in ("bench", "plot", "spark")}
    systems = "Operating System :: POSIX :: Linux"
    return {
        **project,
        "description": "Client and command line of QuorumLog, a replicated message log.",
        "classifiers": [
            line.replace(systems, "Operating System :: OS Independent")
            for line in project["classifiers"]
        ],
        "dependencies": _of(project["dependencies"], _OF_CLIENTS),
        "optional-dependencies": {
            "compression": extras["compression"],
            "fast": _of(project["dependencies"], _FAST),
            "server": [server],
            **of_server,
        },
    }


def _server(project: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `project` of `quorumlog-server`."""
    extras = project["optional-dependencies"]
    clients = _of(project["dependencies"], _OF_CLIENTS)
    names = ("bench", "compression", "plot", "spark")
    return {
        **{key: value for key, value in project.items() if key != "scripts"},
        "name": "quorumlog-server",
        "dependencies": [
            f"quorumlog=={__version__}",
            *(line for line in project["dependencies"] if line not in clients),
        ],
        "optional-dependencies": {name: extras[name] for name in names},
    }


def _toml(value: object) -> str:
    """Return a value as TOML, whose strings and lists are those of JSON."""
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{key} = {_toml(one)}' for key, one in value.items())} }}"
    return json.dumps(value)


def _stage(directory: Path, project: dict[str, Any], build: object, setuptools: object) -> None:
    """Write what is the same in both distributions: the texts and pyproject.toml."""
    for name in ("LICENSE", "README.md"):
        shutil.copy(_ROOT / name, directory)
    fixed = {key: value for key, value in project.items() if key != "dynamic"}
    tables = {
        "build-system": build,
        "project": {**fixed, "version": __version__},
        "tool.setuptools": setuptools,
    }
    lines = []
    for table, values in tables.items():
        assert isinstance(values, dict)
        lines += [f"[{table}]", *(f"{key} = {_toml(value)}" for key, value in values.items()), ""]
    (directory / "pyproject.toml").write_text("\n".join(lines), "utf-8")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("out", type=click.Path(file_okay=False, writable=True, path_type=Path))
def build_packages(out: Path) -> None:
    """Write wheel and sdist of both distributions into the directory OUT, which is made."""
    out.mkdir(parents=True, exist_ok=True)
    with open(_ROOT / "pyproject.toml", "rb") as file:
        root = tomllib.load(file)
    with tempfile.TemporaryDirectory() as scratch, job_progress() as begin_step:
        client, server = Path(scratch, "client"), Path(scratch, "server")
        for name in ("qlog", "quorumlog"):
            shutil.copytree(_ROOT / name, client / name, ignore=_OMITTED)
        modules = server / "quorumlog_server" / "modules"
        for name in _OF_SERVER:
            shutil.copytree(_ROOT / name, modules / name, ignore=_OMITTED)
            shutil.rmtree(client / name, ignore_errors=True)
        (modules.parent / "__init__.py").write_text(_PACKAGE, "utf-8")
        (modules.parent / "__main__.py").write_text(_PROGRAM, "utf-8")
        _stage(
            client,
            _client(root["project"]),
            root["build-system"],
            {
                "packages": {"find": {"include": ["qlog*", "quorumlog*"]}},
                "package-data": {"quorumlog": ["py.typed"]},
            },
        )
        # The modules are data for setuptools: their names are no packages of the environment.
        _stage(
            server,
            _server(root["project"]),
            root["build-system"],
            {
                "packages": ["quorumlog_server"],
                "package-data": {"quorumlog_server": ["modules/**/*"]},
            },
        )
        program = (
            "import sys; out = sys.argv[1]; from setuptools import build_meta as made;"
            " made.build_sdist(out); made.build_wheel(out)"
        )
        for directory in (client, server):
            reached = begin_step(f"Build the {directory.name}", 1)
            command = [sys.executable, "-c", program, str(out.resolve())]
            done = subprocess.run(
                command, cwd=directory, capture_output=True, text=True, check=False
            )
            if done.returncode != 0:
                click.echo(done.stdout + done.stderr, err=True)
                said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
                raise CliError(
                    f"the distribution of the {directory.name} cannot be built",
                    f"setuptools says: {said[-1]}",
                    "see its words above; deploy/venv installs what builds need",
                )
            reached(1)
    for path in sorted(out.glob(f"quorumlog*-{__version__}*")):
        click.echo(f"{path} {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    run_job_command(build_packages, "python -m deploy.build_packages")
