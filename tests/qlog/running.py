"""Ways to run `qlog` against a cluster of real processes.

Every JSON result that a test asks for is compared with the keys that the command's help promises.
"""

import inspect
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from click.testing import CliRunner, Result

from deploy.local import LocalCluster
from qlog import main
from qlog.command_decorators import keys_of
from qlog.connection import SERVER_VARIABLE

PROGRAM = "from qlog import main; main(prog_name='qlog')"


@dataclass(frozen=True, slots=True)
class Qlog:
    """Runs `qlog` against one cluster."""

    nodes: LocalCluster

    def __call__(self, *arguments: object, code: int | None = 0) -> Result:
        """Run a command in this process; its exit code must be `code`, if one is named."""
        result = CliRunner().invoke(
            main,
            [str(argument) for argument in arguments],
            prog_name="qlog",
            env={SERVER_VARIABLE: self.nodes.bootstrap},
        )
        assert code in (None, result.exit_code), (result.exit_code, result.stdout, result.stderr)
        return result

    def json(self, *arguments: object, code: int = 0) -> Any:
        """The result of a command as JSON."""
        answer = json.loads(self(*arguments, "-o", "json", code=code).stdout)
        check_keys(answer, *arguments)
        return answer

    def produce(self, directory: Path, topic: str, text: str, *options: object) -> None:
        """Send the lines of a text, by way of a file."""
        path = directory / "in"
        path.write_text(text)
        assert self.json("produce", topic, "--file", path, *options)["complete"] is True

    def start(
        self, *arguments: object, stdout: int = subprocess.PIPE, stderr: int = subprocess.PIPE
    ) -> "subprocess.Popen[bytes]":
        """Start a command as a process with pipes, or with another stdout or stderr."""
        return started(*arguments, server=self.nodes.bootstrap, stdout=stdout, stderr=stderr)


def started(
    *arguments: object,
    server: str,
    stdout: int = subprocess.PIPE,
    stderr: int = subprocess.PIPE,
) -> "subprocess.Popen[bytes]":
    """A command as a process, for the nodes of an address."""
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=stdout,
        stderr=stderr,
        env={**os.environ, SERVER_VARIABLE: server},
    )


def check_keys(found: Any, *arguments: object) -> None:
    """Compare the keys of a result, and of the rows inside, with those that the help names."""
    promised = promised_keys(*map(str, arguments))
    for row in found if isinstance(found, list) else [found]:
        assert list(row) == promised[""], "the help names other keys"
        for name, keys in promised.items():
            for inner in row[name] if name else []:
                assert list(inner) == keys, f"the help names other keys in {name}"


def promised_keys(*arguments: str) -> dict[str, list[str]]:
    """Return the keys that the help of a command names."""
    command: click.Command = main
    words = iter(arguments)
    while isinstance(command, click.Group):
        subcommand = command.get_command(click.Context(command), next(words))
        assert subcommand is not None, arguments
        command = subcommand
    return keys_of(inspect.cleandoc(command.help or "") + "\n")
