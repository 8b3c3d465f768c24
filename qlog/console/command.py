"""`qlog console`: a cluster in a browser.

Owns the options and the life of the server; `app` has the pages.
"""

import asyncio
import ipaddress
import re
import socket
import ssl
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import click

from qlog.connection import (
    CALL_TIMEOUT_MS,
    addresses,
    call_timeout_ms,
    connected,
    credentials,
    run,
    server_option,
    stop_on_signals,
    tls_files,
    until,
)
from qlog.parsed import Parsed
from qlog.transport import transport
from quorumlog.command_errors import CliError, ExitCode
from quorumlog.errors import PermissionDeniedError
from quorumlog.page_tls import page_context

_PORT: Final = 8088
_IDLE_MS: Final = 600_000
_TITLE: Final = "QuorumLog console"


_NAME: Final = re.compile(r"[a-z0-9_]([a-z0-9_.-]{0,251}[a-z0-9_])?", re.ASCII | re.IGNORECASE)


def _host_name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ValueError(f"{text!r} is no host name; give one, as console.example.com")
    return text.lower()


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
    help="IP address of the pages. A caller that reaches it can read every message.",
)
@click.option(
    "--name",
    "names",
    type=Parsed("host name", _host_name),
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
@click.option(
    "--tls-certificate",
    metavar="FILE",
    help="Certificate (PEM) of the pages, which are https then; it needs --tls-key.",
)
@click.option("--tls-key", metavar="FILE", help="Private key of that certificate (PEM).")
@click.option("--fd", type=int, hidden=True)
@click.option("--idle-ms", type=int, hidden=True)
@server_option
def console(
    port: int,
    host: str,
    names: tuple[str, ...],
    mode: str,
    tls_certificate: str | None,
    tls_key: str | None,
    fd: int | None,
    idle_ms: int | None,
    server: str | None,
) -> int:
    """Show the cluster in a browser.

    Pages of nodes, topics, messages, groups and events, which follow the cluster.
    A client of the cluster like any other, on any machine that reaches a node.
    Its pages load nothing from elsewhere. A cluster with users makes it ask each
    browser for a token, and yours is not used; without them, put it behind
    something that asks beyond loopback.

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
    of_node = None if fd is None else OfNode(fd, idle_ms or _IDLE_MS)
    ca = tls_files(server).ca if of_node is None else ""
    tls = _tls(tls_certificate, tls_key, Path(ca) if ca else None)
    return run(_console(port, host, names, server, of_node, tls, is_full=mode == "full"))


def _tls(certificate: str | None, key: str | None, ca: Path | None) -> ssl.SSLContext | None:
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise click.UsageError("--tls-certificate and --tls-key go together")
    try:
        return page_context(Path(certificate), Path(key), ca)
    except (OSError, ValueError) as error:
        raise CliError(
            f"the pages cannot use {certificate} with {key}",
            str(error),
            "name a certificate and its private key, both PEM, the key without a passphrase",
        ) from error


class OfNode(NamedTuple):
    """What a node gives the console that it starts."""

    fd: int
    """The socket, which listens."""
    idle_ms: int
    """Time without a request after which the console ends."""


async def _console(
    port: int,
    host: str,
    names: tuple[str, ...],
    server: str | None,
    of_node: OfNode | None,
    tls: ssl.SSLContext | None,
    *,
    is_full: bool,
) -> int:
    try:
        import quorumlog
        from qlog.console.server import listening, serve
    except ImportError as error:
        raise CliError(
            f"the console needs a package that is not installed: {error.name}",
            "it is of the server distribution",
            "pip install quorumlog-server",
        ) from error
    # Without the token: all that reach the port would have the rights of its user.
    async with connected(server, shows_token=False) as client:
        with suppress(PermissionDeniedError):  # Its pages ask for a login.
            await client.admin.cluster_status()
        with stop_on_signals() as stop:
            bound = listening(host, port) if of_node is None else socket.socket(fileno=of_node.fd)
            servers, of_nodes = addresses(server), credentials(server)

            def connect(token: str) -> quorumlog.Client:
                return quorumlog.connect(
                    servers,
                    timeout_ms=call_timeout_ms(CALL_TIMEOUT_MS),
                    credentials=of_nodes,
                    transport=transport(),
                    token=token,
                )

            is_certified = bool(tls_files(server).certificate)
            async with serve(
                *(client, bound, names, connect, tls), is_full=is_full, is_certified=is_certified
            ) as running:
                if of_node is None:
                    scheme = "http" if tls is None else "https"
                    address = f"{f'[{host}]' if ':' in host else host}:{bound.getsockname()[1]}"
                    click.echo(f"{_TITLE} of {client.cluster_id}: {scheme}://{address}/")
                    click.echo("Ctrl-C ends it", err=True)
                    await stop.requested.wait()
                else:
                    end = asyncio.ensure_future(running.idle(of_node.idle_ms / 1000))
                    asyncio.get_running_loop().add_reader(0, end.cancel)  # The node has ended.
                    await until(stop.requested, _ended(end))
    return ExitCode.OK


async def _ended(task: "asyncio.Future[None]") -> None:
    with suppress(asyncio.CancelledError):
        await task
