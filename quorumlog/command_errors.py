"""Exit codes and signals of our commands, and errors as three lines: what, why, what to do.

Owns the shape of a failure on a terminal, and what a command does about the dispositions that its
parent left (nodes have `stop_signals`). Must not import server code: errors of the store, of
Raft and of a node are recognised by the attributes that all of them carry (`code`, `outcome`).
"""

import enum
import errno
import signal
import sys
import threading
import traceback
from dataclasses import dataclass
from types import FrameType
from typing import Final

import click

from quorumlog.foreign_text import shown
from quorumlog.standard_output import UnprintableError

_OURS: Final = {
    *("bench", "checkers", "deploy", "node", "pipeline", "planning"),
    *("qlog", "quorumlog", "raft", "store"),
}
"""Packages whose modules are all there: one that is missing is a bug."""
_EXTRA_OF: Final = {
    **dict.fromkeys(("numpy", "pandas", "pyarrow", "pyspark"), "spark"),
    "matplotlib": "plot",
}
"""The extra that brings a library which only some commands need."""


class ExitCode(enum.IntEnum):
    """The exit code of the process. A command may return one of these."""

    OK = 0
    FINDINGS = 1  # The work was done, with a bad result: damage, a failed verdict.
    USAGE = 2  # The command line makes no sense; nothing was done.
    FAILED = 3  # The operation could not be done, or broke off.
    INTERRUPTED = 130  # Ctrl-C; 128 + SIGINT, as shells count.
    BROKEN_PIPE = 141  # The reader of stdout went away; 128 + SIGPIPE.


@dataclass(frozen=True, slots=True)
class Explanation:
    """The three lines of a failure, and the exit code that goes with it."""

    what: str
    why: str
    do: str
    exit_code: ExitCode = ExitCode.FAILED

    def __str__(self) -> str:
        return f"error: {shown(self.what)}\n  why: {shown(self.why)}\n  do:  {shown(self.do)}"


class CliError(Exception):
    """A command cannot go on. Raise it with the three lines for the user."""

    def __init__(self, what: str, why: str, do: str, exit_code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(what, why, do, exit_code)
        self.explanation = Explanation(what, why, do, exit_code)

    def __str__(self) -> str:
        return str(self.explanation)


def explain(error: Exception) -> Explanation:
    """Return the three lines of any error. An unforeseen one is called a bug."""
    error = _first(error)
    if isinstance(error, CliError):
        return error.explanation
    if isinstance(error, click.UsageError):
        return _explain_usage(error)
    if isinstance(error, click.ClickException):
        return Explanation(
            error.format_message(), "the command gave up", "correct that and run it again"
        )
    if isinstance(getattr(error, "code", None), str):
        return _explain_coded(error)
    if isinstance(error, UnprintableError):
        return Explanation(
            f"cannot write to stdout: {error.strerror}",
            "the work before that is done, if any; its result could not be printed",
            "look at what the command changed, and do not run it again for its output alone",
        )
    missing = (error.name or "").partition(".")[0] if isinstance(error, ImportError) else "qlog"
    if missing in _EXTRA_OF:
        extra = _EXTRA_OF[missing]
        return Explanation(
            f"{missing} is not installed, and this command needs it",
            f"it is of the extra {extra!r}, which is not installed by default",
            f"pip install 'quorumlog[{extra}]'",
        )
    if missing not in _OURS:
        return Explanation(
            f"a library cannot be loaded: {error}",
            "the installation is broken, or a variable of the environment asks for what is not "
            "there (PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION, PYTHONPATH, LD_LIBRARY_PATH)",
            "unset that variable, or install QuorumLog again in an environment of its own",
        )
    if isinstance(error, OSError) and error.errno == errno.EBADF:
        return Explanation(
            "stdin is closed, and the command needs it",
            f"the system says: {error.strerror}",
            "start it with that stream; </dev/null stands for none",
        )
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return Explanation(
            "no file descriptor is left, and the command needs more",
            f"the system says: {error.strerror}",
            "raise the limit of open files ('ulimit -n'), then run it again",
        )
    if isinstance(error, OSError):
        return Explanation(
            str(error.filename or "a system call") + f": {error.strerror or error}",
            f"the operating system refused ({type(error).__name__})",
            "check the path, its permissions and the free space, then run it again",
        )
    return Explanation(
        f"{type(error).__name__}: {error}",
        "this is a bug in QuorumLog; where it happened is above",
        "report it with the text above and the command line",
    )


def report(error: Exception) -> ExitCode:
    """Print an error to stderr, with a traceback if it is a bug, and return its exit code."""
    if isinstance(error, click.Abort):
        click.echo("interrupted", err=True)
        return ExitCode.INTERRUPTED
    explanation = explain(error)
    error = _first(error)
    foreseen = isinstance(error, CliError | click.ClickException | OSError | ImportError)
    if not foreseen and not isinstance(getattr(error, "code", None), str):
        traceback.print_exception(error)
    click.echo(str(explanation), file=sys.stderr)
    return explanation.exit_code


def _first(error: Exception) -> Exception:
    """Return the first error of a group of tasks: it ended the others."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


def _explain_usage(error: click.UsageError) -> Explanation:
    if error.ctx is None:
        return Explanation(error.format_message(), "wrong usage", "see qlog --help", ExitCode.USAGE)
    usage = " ".join(error.ctx.get_usage().split()).removeprefix("Usage: ")
    return Explanation(
        error.format_message(),
        f"the usage is: {usage}",
        f"see {error.ctx.command_path} --help",
        ExitCode.USAGE,
    )


def _explain_coded(error: Exception) -> Explanation:
    """Split the text of an error of ours, which is "what, with numbers; what to do" in one line."""
    what, _, do = str(error).rpartition("; ")
    outcome = getattr(error, "outcome", None)
    why = f"code {getattr(error, 'code', '')}"
    if outcome is not None:
        why += f", outcome {getattr(outcome, 'value', outcome)}"
    if not what:
        what, do = (
            do,
            "run it again" if getattr(error, "retryable", False) else "see docs/errors.md",
        )
    return Explanation(what, why, do)


def take_signals() -> None:
    """Let SIGTERM and a terminal that closes end this command as Ctrl-C does, unless they are
    ignored, and undo what a parent left: with SIGCHLD ignored each child has ended with 0, and a
    blocked signal ends nothing."""
    if threading.current_thread() is not threading.main_thread():  # Others may not set it.
        return
    if sys.platform == "win32":  # It has Ctrl-C alone.
        return
    for number in (signal.SIGHUP, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    ours = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ours)


def _interrupt(number: int, frame: FrameType | None) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # Of a script's background jobs.
        signal.default_int_handler(number, frame)
    signal.raise_signal(signal.SIGINT)
