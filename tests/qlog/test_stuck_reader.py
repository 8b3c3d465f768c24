"""Ends of commands from outside: Ctrl-C ends one whose reader has stopped, however it writes; a
reader that leaves ends one that is quiet; what a parent ignored and blocked is taken back."""

import fcntl
import os
import signal
import subprocess
import sys
import termios

import pytest

from quorumlog.command_errors import ExitCode
from tests.patience import PATIENCE_S, wait_for
from tests.qlog.running import Qlog

COMMANDS = """
import click
from qlog import LazyGroup
from qlog.connection import run, stop_on_signals, until
from qlog.messages.consume_output import MessageWriter, OutputFormat

@click.group(cls=LazyGroup, lazy={})
def main(): ...

@main.command()
def printed(): click.echo("x" * 1_000_000)

@main.command()
def streamed():
    async def stream():
        with stop_on_signals() as stop:
            async with MessageWriter.opened(OutputFormat.JSON) as writer:
                await until(stop.requested, writer._put(bytes(1_000_000)))
        return 130 * writer.is_stuck
    return run(stream())

main()
"""


@pytest.mark.parametrize("command", ["printed", "streamed"])
def test_an_interrupt_ends_a_command_whose_reader_has_stopped(command: str) -> None:
    reader, writer = os.pipe()
    size_bytes = fcntl.fcntl(writer, fcntl.F_GETPIPE_SZ)
    assert size_bytes < 1_000_000

    def is_full() -> bool:
        waiting = fcntl.ioctl(reader, termios.FIONREAD, bytes(4))
        return int.from_bytes(waiting, sys.byteorder) == size_bytes

    with subprocess.Popen([sys.executable, "-c", COMMANDS, command], stdout=writer) as process:
        os.close(writer)
        wait_for("the command that waits for the reader", is_full)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130
    os.close(reader)


PARENT = """
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
    ended = subprocess.run([sys.executable, "-c", PARENT, "act"], check=False)
    assert ended.returncode == ExitCode.INTERRUPTED


@pytest.mark.parametrize(
    "words",
    [
        ("consume", "{}"),
        ("consume", "{}", "--group", "g"),
        ("consume", "{}", "--group", "g", "--pop"),
        ("topic", "describe", "none", "--until", "exists", "--timeout", "1h"),
        ("topic", "list", "--watch"),
        ("top", "--interval", "3600"),
    ],
    ids=["pull", "group", "pop", "until", "watch", "top"],
)
def test_a_quiet_command_ends_when_its_reader_does(
    qlog: Qlog, topic: str, words: tuple[str, ...]
) -> None:
    reader, writer = os.pipe()
    with qlog.start(*(word.format(topic) for word in words), stdout=writer) as process:
        os.close(writer)
        os.close(reader)
        assert (process.wait(PATIENCE_S), process.communicate()[1]) == (ExitCode.BROKEN_PIPE, b"")


def test_what_a_reader_took_before_it_left_is_committed(qlog: Qlog, topic: str) -> None:
    qlog("produce", topic, "--file", __file__)
    with qlog.start("consume", topic, "--group", topic) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.wait(PATIENCE_S) == ExitCode.BROKEN_PIPE
    assert qlog.json("group", "describe", topic)["lag_count"] == 0
