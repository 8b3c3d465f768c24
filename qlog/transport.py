"""The options `--transport` and `--token-file`, which stand in front of the command.

Owns the options and their variables. Must not load what a command needs: the top level imports it.
"""

import os

import click

from quorumlog.cluster.transport import TRANSPORTS, Transport, transport_of

TRANSPORT_VARIABLE = "QUORUMLOG_TRANSPORT"
TOKEN_FILE_VARIABLE = "QUORUMLOG_TOKEN_FILE"
TOKEN_VARIABLE = "QUORUMLOG_TOKEN"


transport_option = click.option(
    "--transport",
    type=click.Choice(TRANSPORTS),
    envvar=TRANSPORT_VARIABLE,
    default="auto",
    help="Way of messages to and from the nodes: frames where a node has a port "
    "for them that can be reached and else gRPC; only frames; or only gRPC.  [env var: "
    f"{TRANSPORT_VARIABLE}; default: auto]",
)
"""Decorates the top level with `--transport`; commands ask `transport()` for it."""


def transport() -> Transport:
    """Return the transport that was chosen in front of the command, or by the variable."""
    context = click.get_current_context(silent=True)
    chosen = None if context is None else context.find_root().params.get("transport")
    return transport_of(chosen or os.environ.get(TRANSPORT_VARIABLE) or "auto")


token_option = click.option(
    "--token-file",
    metavar="FILE",
    envvar=TOKEN_FILE_VARIABLE,
    help="File with the token of the user that calls.  [env var: "
    f"{TOKEN_FILE_VARIABLE}, or {TOKEN_VARIABLE} with the token; default: that of the context]",
)
"""Decorates the top level with `--token-file`; commands ask `token_file()` for it."""


def token_file() -> str:
    """Return the file that was named in front of the command, or by the variable; empty: none."""
    context = click.get_current_context(silent=True)
    chosen = None if context is None else context.find_root().params.get("token_file")
    return chosen or os.environ.get(TOKEN_FILE_VARIABLE) or ""
