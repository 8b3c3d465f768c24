"""`qlog console`: a cluster in a browser.

Owns the options and the life of the server; `app` has the pages.
"""

import asyncio
import ipaddress
from typing import Final

import click

from qlog.connection import connected, run, server_option, stop_on_signals
from quorumlog.command_errors import CliError, ExitCode

_PORT: Final = 8088
_TITLE: Final = "QuorumLog console"


@click.command()
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=_PORT,
    show_default=True,
    help="Port of the pages; 0: one that is free.",
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    metavar="ADDRESS",
    help="IP address of the pages. Whoever reaches it can read every message.",
)
@click.option(
    "--name",
    "names",
    multiple=True,
    metavar="HOST",
    help="A host name by which browsers call it, beside IP addresses and localhost.",
)
@click.option(
    "--mode",
    type=click.Choice(["read", "full"]),
    default="read",
    show_default=True,
    help="full: pages can send messages, reset groups, and send dead letters again.",
)
@server_option
def console(port: int, host: str, names: tuple[str, ...], mode: str, server: str | None) -> int:
    """Show the cluster in a browser: nodes, topics, messages, groups, events.

    A client of the cluster like any other, on any machine that reaches a node.
    Its pages load nothing from elsewhere. It asks for no password: beyond
    loopback, put it behind something that does.

    \b
    Examples:
      qlog console
      qlog console --server node1:8081 --mode full
      qlog console --host 0.0.0.0 --name console.example.com
    """
    try:
        ipaddress.ip_address(host)
    except ValueError:
        text = f"{host!r} is no IP address; name one, and the host name with --name"
        raise click.BadParameter(text, param_hint="--host") from None
    return run(_console(port, host, names, server, is_full=mode == "full"))


async def _console(
    port: int, host: str, names: tuple[str, ...], server: str | None, *, is_full: bool
) -> int:
    try:
        from qlog.console.server import serve
    except ImportError as error:
        raise CliError(
            f"the console needs a package that is not installed: {error.name}",
            "it is of the server distribution",
            "pip install quorumlog-server",
        ) from error
    with stop_on_signals() as stop:
        async with connected(server) as client:
            await client.admin.cluster_status()
            async with serve(client, host, port, names, is_full=is_full) as address:
                click.echo(f"{_TITLE} of {client.cluster_id}: http://{address}/  (Ctrl-C ends it)")
                await stop.requested.wait()
                await asyncio.sleep(0)
    return ExitCode.OK
