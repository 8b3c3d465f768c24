"""Exit codes and signals of our commands, and errors as three lines: what, why, what to do.

Owns the shape of a failure on a terminal, and what a command does about the dispositions that its
parent left (nodes have `stop_signals`). Must not import server code: errors of the store, of
Raft and of a node are recognised by the attributes that all of them carry (`code`, `outcome`).
"""

import enum
import errno
import json
import re
import shutil
import signal
import sys
import textwrap
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from functools import partial
from types import FrameType
from typing import Final

import click

from quorumlog.foreign_text import shown, shown_json
from quorumlog.standard_output import UnprintableError

_INDENT: Final = " " * len("error: ")
_FOLD: Final = partial(
    textwrap.wrap, subsequent_indent=_INDENT, break_long_words=False, break_on_hyphens=False
)
_OURS: Final = {
    *("bench", "checkers", "deploy", "node", "pipeline", "planning"),
    *("qlog", "quorumlog", "raft", "store"),
}
"""Packages whose modules are all there: one that is missing is a bug."""
_EXTRA_OF: Final = {
    **dict.fromkeys(("numpy", "pandas", "pyarrow", "pyspark"), "spark"),
    "matplotlib": "plot",
    "zstandard": "compression",
}
"""The extra that brings a library which only some commands need."""


class ExitCode(enum.IntEnum):
    """The exit code of the process. A command may return one of these."""

    OK = 0
    FINDINGS = 1  # The work was done, with a bad result: damage, a failed verdict.
    USAGE = 2  # The command line, or a file of the user's settings, makes no sense: nothing done.
    FAILED = 3  # The operation could not be done, or broke off; none of the following is known.
    NOT_FOUND = 4  # The cluster has no such topic, group, message or node.
    REFUSED = 5  # The cluster refused it, and will refuse the same again.
    TIMEOUT = 6  # Time ran out, and nothing was done.
    UNKNOWN = 7  # The effect is unknown: it may have been done.
    INTERRUPTED = 130  # Ctrl-C; 128 + SIGINT, as shells count.
    BROKEN_PIPE = 141  # The reader of stdout went away; 128 + SIGPIPE.


@dataclass(frozen=True, slots=True)
class Explanation:
    """The three lines of a failure, and the exit code that goes with it."""

    what: str
    why: str
    do: str
    exit_code: ExitCode = ExitCode.FAILED
    code: str = ""
    """Of the error, for `qlog explain`; empty: it has none."""
    others: tuple[str, ...] = ()
    """More causes, a line each."""

    def __str__(self) -> str:
        return self.folded(None)

    def folded(self, width: int | None) -> str:
        """Return the lines, folded at words to at most `width` columns; None: no limit."""
        why = f"{self.why} (code {self.code})" if self.code else self.why
        rows = [("error: ", self.what), ("  why: ", why)]
        rows += [(_INDENT, other) for other in self.others] + [("  do:  ", self.do)]
        lines: list[str] = []
        for head, text in rows:
            line = head + shown(text)
            lines += [line] if width is None else _FOLD(line, width)
        return "\n".join(lines)

    def json(self, indent: int | None) -> str:
        """Return it as one document, with the names of the attributes as keys."""
        document = {"code": None} | {k: v for k, v in asdict(self).items() if v not in ("", ())}
        return shown_json(json.dumps(document, indent=indent, ensure_ascii=False))


class CliError(Exception):
    """A command cannot go on. Raise it with the three lines for the user."""

    def __init__(
        self,
        what: str,
        why: str,
        do: str,
        exit_code: ExitCode = ExitCode.FAILED,
        code: str = "",
        others: tuple[str, ...] = (),
    ) -> None:
        super().__init__(what, why, do, exit_code, code)
        self.explanation = Explanation(what, why, do, exit_code, code, others)

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
        place = traceback.extract_tb(error.__traceback__)
        call = f"a system call in {place[-1].name}" if place else "a system call"
        return Explanation(
            str(error.filename or call) + f": {error.strerror or error}",
            f"the operating system refused ({type(error).__name__})",
            _REMEDIES.get(error.errno or 0, "look at the path and its disk, then run it again"),
        )
    return Explanation(
        f"{type(error).__name__}: {error}",
        "this is a bug in QuorumLog; where it happened is above",
        "report it with the text above and the command line",
    )


def report(error: Exception, arguments: Sequence[str] = ()) -> ExitCode:
    """Print an error to stderr, with a traceback if it is a bug, and return its exit code.

    Where the arguments of the command have `-o json` or `-o jsonl`, it is one JSON document.
    """
    if isinstance(error, click.Abort):
        click.echo("interrupted", err=True)
        return ExitCode.INTERRUPTED
    explanation = explain(error)
    error = _first(error)
    form = re.search(r"(?:^|\n)(?:-o|--output)[=\n]?(jsonl?)(?:\n|$)", "\n".join(arguments))
    foreseen = isinstance(error, CliError | click.ClickException | OSError | ImportError)
    if not foreseen and not isinstance(getattr(error, "code", None), str):
        trace = "".join(traceback.format_exception(error))
        if form:
            explanation = replace(explanation, why=f"{explanation.why}\n{trace}")
        else:
            click.echo(trace, err=True, nl=False)
    indent = 2 if form and form[1] == "json" else None
    width = shutil.get_terminal_size().columns if sys.stderr.isatty() else None
    text = explanation.json(indent) if form else explanation.folded(width)
    click.echo(text, file=sys.stderr)
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
    do = f"see {error.ctx.command_path} --help"
    is_option = isinstance(error, click.NoSuchOption)
    wrong = re.fullmatch("No such (?:option|command) '?(.+?)'?[.]?", error.message)
    extra = re.fullmatch(r"Got unexpected extra argument \(([0-9]+)\)", error.message)
    command = error.ctx.command
    options = [
        name
        for param in command.params
        if isinstance(param, click.Option)
        for name in param.opts + param.secondary_opts
    ]
    arguments = [f"--{param.name}".replace("_", "-") for param in command.params]
    if wrong is not None:
        near = nearest(wrong[1], options)
        if wrong[1] == "--from-beginning" and "--from" in options:  # As Kafka has it.
            near = _proposal(["--from first"])
        elif wrong[1] in arguments:
            near = f"it is an argument here: give its value without {wrong[1]}; else "
        root = error.ctx.find_root()
        for param in root.command.params if command is not root.command else ():
            if wrong[1] in param.opts and param.metavar:
                first, _, rest = error.ctx.command_path.partition(" ")
                near = f"it stands in front: {first} {wrong[1]} {param.metavar} {rest}; else "
        if isinstance(command, click.Group) and wrong[1] in _OF_COMMANDS:
            near = f"name it behind the command: {error.ctx.command_path} COMMAND {wrong[1]}; else "
        do = (near if is_option else _near_commands(wrong[1], command)) + do
    elif extra is not None and "--node" in options:
        do = _proposal([f"--node {extra[1]}"]) + do
    # Click has its own proposals in the formatted message, of names that are loaded already.
    what = error.message if wrong is not None else " ".join(error.format_message().split())
    return Explanation(what, f"the usage is: {usage}", do, ExitCode.USAGE)


def nearest(name: str, names: Sequence[str]) -> str:
    """Return the beginning of a remedy that proposes the names that are near one; "" if none is."""
    return _proposal(get_close_matches(name, names))


def _proposal(names: Sequence[str]) -> str:
    return f"did you mean {' or '.join(map(repr, names))}? else " if names else ""


def _near_commands(name: str, group: click.Command) -> str:
    """Propose commands of that name in the tree below a group, else those near it: in the group
    and its options, else in the tree."""
    paths = sorted(_paths(group), key=lambda path: (path.count(" "), _rank(path)))
    names = [path.rpartition(" ")[2] for path in paths]
    name = name if name in names else _SYNONYMS.get(name, name)
    options = [option for param in group.params for option in param.opts]
    near = get_close_matches(name, [*(path for path in paths if " " not in path), *options])
    if name in names or not near:
        close = [name] if name in names else get_close_matches(name, dict.fromkeys(names))
        near = [path for path, own in zip(paths, names, strict=True) if own in close]
    return _proposal(near[:_PROPOSALS_MAX])


def _rank(path: str) -> int:
    return next((n for n, group in enumerate(_LIKELY) if path.startswith(group)), len(_LIKELY))


def _paths(group: click.Command, before: str = "") -> Iterator[str]:
    """Yield the words of all commands below a group, in the order of its help."""
    if not isinstance(group, click.Group):
        return
    context = click.Context(group, resilient_parsing=True)  # A missing server raises nothing then.
    for name in dict.fromkeys([*getattr(group, "lazy", ()), *group.list_commands(context)]):
        yield before + name
        with suppress(ImportError):  # An extra that is not installed.
            command = group.get_command(context, name)
            if command is not None:
                yield from _paths(command, f"{before}{name} ")


def _explain_coded(error: Exception) -> Explanation:
    """Split the text of an error of ours, which is "what, with numbers; what to do" in one line, or
    of `_SAY_WHY` "what; why; what to do"."""
    cause = shown(getattr(error, "cause", ""))
    what, found, do = str(error).partition(f": {cause}; ")
    if not (cause and found):
        what, _, do = str(error).rpartition("; ")
    if getattr(error, "code", "") in _SAY_WHY and "; " in what:
        what, _, cause = what.rpartition("; ")
    code, outcome = str(getattr(error, "code", "")), getattr(error, "outcome", None)
    outcome = getattr(outcome, "value", outcome)
    is_retryable = getattr(error, "retryable", False)
    cause = "; ".join(filter(None, (cause or _cause(code, error), getattr(error, "origin", ""))))
    if not what:
        what, do = do, "run it again" if is_retryable else f"see qlog explain {code}"
    return Explanation(
        what,
        cause + (", and the effect is unknown" if outcome == "unknown" else ""),
        getattr(error, "proposal", "") + (getattr(error, "remedy", "") or do),
        exit_code_of(code, is_retryable=is_retryable, is_unknown=outcome == "unknown"),
        code,
    )


def _cause(code: str, error: Exception) -> str:
    """Return the first sentence about a code as the end of a sentence."""
    from quorumlog.code_meanings import MEANINGS
    from quorumlog.error_codes import CODES

    text = CODES[code][-1] if code in CODES else MEANINGS.get(code) or type(error).__doc__ or ""
    text = " ".join(text.split())
    sentence = re.split(r"[.] |[.]$", text.replace("`", ""))[0]
    word = sentence.partition(" ")[0]
    is_plain = word[1:].islower() or len(word) == 1
    return sentence[:1].lower() + sentence[1:] if is_plain else sentence


def exit_code_of(code: str, *, is_retryable: bool, is_unknown: bool) -> ExitCode:
    """Return the exit code for an error with this code."""
    from quorumlog.error_codes import CODES

    layer, _, word = code.rpartition(".")
    if is_unknown:
        return ExitCode.UNKNOWN
    if code in _USAGE or (layer in ("client", "local") and word.startswith("bad_")):
        return ExitCode.USAGE
    if word in _NOT_FOUND:
        return ExitCode.NOT_FOUND
    if word in ("deadline", "request_slow") or word.endswith("timeout"):
        return ExitCode.TIMEOUT
    is_refused = code in CODES and layer != "store" and not is_retryable
    is_refused = is_refused or word in _REFUSED or word.startswith("bad_")
    return ExitCode.REFUSED if is_refused else ExitCode.FAILED


_SYNONYMS: Final = {
    "ls": "list",
    "nodes": "members",
    "ps": "status",
    "rm": "delete",
    "send": "produce",
    "show": "describe",
    "publish": "produce",
    "up": "start",
    "down": "stop",
}
"""Our names of what other command lines call so."""
_OF_COMMANDS: Final = {"-s", "--server", "--timeout", "-o", "--output"}
"""Options that most commands have, and no group."""
_LIKELY: Final = ("cluster ", "local ")
"""The groups whose commands are proposed before others of the same name."""
_PROPOSALS_MAX: Final = 3
_NOT_FOUND: Final = {
    *("unknown_topic", "unknown_group", "unknown_queue", "unknown_member", "unknown_transaction"),
    *("unknown_user", "unknown_role"),
    *("not_found", "message_not_found", "value_not_found", "no_such_offset", "none", "no_node"),
}
_USAGE: Final = {"client.tls_file", "client.wrong_type", "config.invalid"}
"""Codes of what a call or a command was given, beside `bad_` of the client: no node saw it."""
_SAY_WHY: Final = {"node.bad_access", "node.forbidden", "node.unauthenticated"}
"""Codes of a node whose texts have the reason between what and what to do."""
_REFUSED: Final = {"too_large", "limit_exceeded", "record_format"}
"""Of these words of codes, those of the client and the store are about what a call hands in."""
_REMEDIES: Final = {
    errno.ENOENT: "check the path",
    errno.EEXIST: "name another path, or move away what is there",
    errno.ENOTDIR: "check the path",
    errno.EISDIR: "name a file",
    errno.EACCES: "check the permissions of the path, and the user that runs it",
    errno.EPERM: "check the permissions of the path, and the user that runs it",
    errno.ENOSPC: "free space on that disk, then run it again",
}


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
