"""`qlog explain`: what an error code means.

Owns the printing; the meanings are those of docs/errors.md.
"""

import inspect
import re
from itertools import groupby

import click

from qlog.command_decorators import Printout, TableRows, printed
from qlog.names import of
from qlog.output import Row
from quorumlog.command_errors import CliError, ExitCode, exit_code_of, nearest

_COLUMNS = ("code", "exit_code", "meaning")


@click.command()
@click.argument(
    "code", metavar="[CODE]", required=False, shell_complete=of(lambda _context: _codes())
)
@printed
def explain(code: str | None) -> Printout:
    """Say what an error code means.

    The code stands at the end of the why of an error. outcome is what became of the call,
    exit_code how a command ends that met it. CODE may be an exit code, too. Without it all are
    listed; with -o json an exit code is a code then, without status, retryable and outcome.

    \b
    Keys of -o json:
      code, status (of gRPC; null for one of the client or of qlog local),
      retryable, outcome, exit_code, meaning

    \b
    Examples:
      qlog explain
      qlog explain 3
      qlog explain node.unknown_topic
      qlog explain client.deadline -o json | jq .retryable
    """
    codes, ends = _codes(), _exit_codes()
    if code is None or code in ends:
        of_ends = [
            {"code": end, "exit_code": int(end), "meaning": meaning}
            for end, meaning in ends.items()
            if code in (None, end)
        ]
        rows = [_row(each, codes[each]) for each in sorted(codes)]
        rows = [row for row in rows if code in (None, str(row["exit_code"]))]
        groups = groupby(rows, lambda row: str(row["code"]).partition(".")[0])
        return Printout(
            [*of_ends, *rows] if code is None else of_ends[0],
            table=[
                TableRows(
                    _COLUMNS[1:], [{name: row[name] for name in _COLUMNS[1:]} for row in of_ends]
                ),
                *(TableRows(_COLUMNS, [_short(row) for row in group]) for _, group in groups),
            ],
        )
    if code.startswith("client.bad_"):  # What is bad is named by the error.
        codes = {code: codes["client.bad_argument"]} | codes
    if code not in codes:
        raise CliError(
            f"there is no error code {code!r}",
            "no call fails with it; a code in the log of a node stands beside its meaning",
            nearest(code, [*codes]) + "copy it from the error, whose text says the same",
            ExitCode.NOT_FOUND,
        )
    return Printout(_row(code, codes[code]))


def _row(code: str, known: tuple[str, str, str, str]) -> dict[str, object]:
    status, retry, outcome, meaning = known
    is_retryable, is_unknown = retry == "yes", outcome == "unknown"
    return {
        "code": code,
        "status": status or None,
        "retryable": is_retryable,
        "outcome": outcome,
        "exit_code": int(exit_code_of(code, is_retryable=is_retryable, is_unknown=is_unknown)),
        "meaning": meaning,
    }


def _short(row: Row) -> Row:
    """Return the columns of a list, with the first sentence of the meaning."""
    sentence = str(row["meaning"]).partition(". ")[0].removesuffix(".")
    return {name: row[name] for name in _COLUMNS} | {"meaning": sentence}


def _exit_codes() -> dict[str, str]:
    """Return the meanings of exit codes, as the help of the top level has them."""
    text = inspect.cleandoc(click.get_current_context().find_root().command.help or "")
    found = re.findall(r"^  ([0-9]+) +(.+(?:\n {7}.+)*)", text, re.MULTILINE)
    return {end: " ".join(meaning.split()) for end, meaning in found}


def _codes() -> dict[str, tuple[str, str, str, str]]:
    """Return the codes of clients and commands, and those of calls of nodes, which come last."""
    from quorumlog.code_meanings import own_codes
    from quorumlog.error_codes import CODES

    return own_codes() | CODES
