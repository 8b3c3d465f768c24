"""Signals as a parent may leave them: commands see how children end, and can be ended."""

import subprocess
import sys

from quorumlog.command_errors import ExitCode

COMMAND = """
import signal, subprocess, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
import click
from qlog import LazyGroup

@click.group(cls=LazyGroup, lazy={})
def main(): ...

@main.command()
def act():
    assert subprocess.run([sys.executable, "-c", "exit(5)"]).returncode == 5
    signal.raise_signal(signal.SIGTERM)

main()
"""


def test_a_command_takes_back_what_its_parent_ignored_and_blocked() -> None:
    ended = subprocess.run([sys.executable, "-c", COMMAND, "act"], check=False)
    assert ended.returncode == ExitCode.INTERRUPTED
