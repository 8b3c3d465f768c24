"""The option `--transport`, which stands in front of the command.

Owns the option and its variable. Must not load what a command needs: the top level imports it.
"""

import os

import click

from quorumlog.cluster.transport import TRANSPORTS, Transport, transport_of

TRANSPORT_VARIABLE = "QUORUMLOG_TRANSPORT"


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
