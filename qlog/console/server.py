"""The server of the console: its port, its pages, and its end.

Owns the table of pages and changes. Must not know how a page is made.
"""

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Final

import uvicorn

import quorumlog
from qlog.console.app import Change, Console, Page
from qlog.console.cluster import Cluster
from qlog.console.connections import Connection
from qlog.console.login import Connect, Logins
from qlog.console.pages import groups, messages, microscope, nodes, overview, topics
from quorumlog.command_errors import CliError

PAGES: Final = (
    Page("/", "overview.html", overview.show),
    Page("/events", "events.html", overview.show_events),
    Page("/topics", "topics.html", topics.show_all),
    Page("/topics/{topic}", "topic.html", topics.show_one),
    Page("/topics/{topic}/messages", "messages.html", messages.show_queue),
    Page("/topics/{topic}/tail", "tail.html", messages.show_tail),
    Page("/topics/{topic}/find", "find.html", messages.show_found),
    Page("/topics/{topic}/at", "message.html", messages.show_at),
    Page("/topics/{topic}/send", "send.html", messages.show_send),
    Page("/messages", "message.html", messages.show_asked),
    Page("/messages/{id}", "message.html", messages.show_one),
    Page("/groups", "groups.html", groups.show_all),
    Page("/groups/{group}", "group.html", groups.show_one),
    Page("/groups/{group}/reset", "reset.html", groups.show_reset),
    Page("/microscope", "microscope.html", microscope.show),
    Page("/nodes", "nodes.html", nodes.show_all),
    Page("/nodes/{node_id}", "node.html", nodes.show_one),
)
CHANGES: Final = (
    Change("/topics/{topic}/send", "/topics/{topic}/send", messages.send),
    Change("/groups/{group}/reset", "/groups/{group}/reset", groups.reset),
    Change("/groups/{group}/resend", "/groups/{group}", groups.resend),
)
_STOP_S: Final = 1
"""Time for pages that are on their way, at the end."""
_BACKLOG: Final = 64
"""Connections that are accepted at once, so that many are above the limit at most."""


class _Server(uvicorn.Server):
    """A server that leaves signals to the command."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens. Raises CliError for a port that is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        why = error.strerror or str(error)
        do = "name a port that is free: --port"
        if error.errno == errno.EADDRNOTAVAIL:
            do = "name an address of this machine: --host"
        elif isinstance(error, PermissionError):
            do = "name a port above 1023: --port"
        raise CliError(f"the console cannot listen on {host}:{port}", why, do) from error


@contextlib.asynccontextmanager
async def serve(
    client: quorumlog.Client,
    bound: socket.socket,
    names: Sequence[str],
    connect: Connect,
    tls: ssl.SSLContext | None = None,
    *,
    is_full: bool,
    is_certified: bool,
) -> AsyncIterator[Console]:
    """Serve the pages of a cluster on a socket that listens; `connect` is for logins, `tls` of
    the pages, and `is_certified` says that the client shows a certificate."""
    cluster = Cluster(client, is_full=is_full)
    logins = Logins(cluster, connect, bound.getsockname()[1], is_certified=is_certified)
    console = Console(cluster, PAGES, CHANGES, logins)
    config = uvicorn.Config(
        console.application(names),
        lifespan="off",
        ws="none",
        http=Connection,
        log_config=None,
        log_level="critical",  # `Shield` tells what fails; the others are lines of strangers.
        access_log=False,
        server_header=False,
        backlog=_BACKLOG,
        timeout_graceful_shutdown=_STOP_S,
    )
    if tls is not None:
        config.load()
        config.ssl = tls
    server = _Server(config)
    task = asyncio.create_task(server.serve([bound]), name="console")
    try:
        yield console
    finally:
        console.is_stopping.set()
        server.should_exit = True
        await task
        await logins.close()
