"""`qlog explain`: what an error code means.

Owns the printing; the meanings are those of docs/errors.md.
"""

import click

from qlog.command_decorators import printed
from qlog.names import of
from quorumlog.command_errors import CliError, ExitCode, exit_code_of, nearest


@click.command()
@click.argument("code", metavar="CODE", shell_complete=of(lambda _context: _codes()))
@printed
def explain(code: str) -> dict[str, object]:
    """Say what an error code means.

    The code stands at the end of the why of an error. outcome is what became of the call,
    exit_code how a command ends that met it.

    \b
    Keys of -o json:
      code, status (of gRPC; null for one of the client or of qlog local),
      retryable, outcome, exit_code, meaning

    \b
    Examples:
      qlog explain node.unknown_topic
      qlog explain client.deadline -o json | jq .retryable
    """
    codes = _codes()
    if code.startswith("client.bad_"):  # What is bad is named by the error.
        codes = {code: codes["client.bad_argument"]} | codes
    if code not in codes:
        raise CliError(
            f"there is no error code {code!r}",
            "no call fails with it; a code in the log of a node stands beside its meaning",
            nearest(code, [*codes]) + "copy it from the error, whose text says the same",
            ExitCode.NOT_FOUND,
        )
    status, retry, outcome, meaning = codes[code]
    is_retryable, is_unknown = retry == "yes", outcome == "unknown"
    return {
        "code": code,
        "status": status or None,
        "retryable": is_retryable,
        "outcome": outcome,
        "exit_code": int(exit_code_of(code, is_retryable=is_retryable, is_unknown=is_unknown)),
        "meaning": meaning,
    }


def _codes() -> dict[str, tuple[str, str, str, str]]:
    """Return the codes of clients and commands, and those of calls of nodes, which come last."""
    from quorumlog.code_meanings import own_codes
    from quorumlog.error_codes import CODES

    return own_codes() | CODES
