"""The HTTP port of a node, for people, Prometheus and probes: five pages.

Owns /metrics, /live, /ready, /status and /events and the server's life; `http_connections` bounds
the connections, `shared_page` what the pages cost. Runs on the node's loop, so a stuck loop does
not answer, which is the purpose of a liveness probe. Read-only. With users on, all but the probes
need a bearer token; without users, bind the port where only people who may read the pages reach it.
"""

import asyncio
import contextlib
import hmac
import json
import secrets
import socket
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final, cast

import uvicorn
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from node.config.limits import PortLimits
from node.config.types import Address
from node.errors.common import NodeError
from node.errors.users import ForbiddenError, UnauthenticatedError
from node.monitoring.health import Health, HealthVerdict
from node.monitoring.http_connections import (
    CONNECTION_COUNT_MAX,
    REQUEST_SIZE_BYTES_MAX,
    HttpConnection,
    HttpConnections,
)
from node.monitoring.pages import Pages
from node.monitoring.shared_page import SharedPage
from node.runtime.accounts import network_of
from node.runtime.logs.events import EVENTS
from node.services.server import PortTakenError
from node.users.guard import Guard
from node.users.rules import Action, ClusterPart, Need, ResourceKind
from node.users.users import NO_USERS
from quorumlog.page_tls import page_context

BACKLOG_COUNT_MAX: Final = CONNECTION_COUNT_MAX // 2
"""Connections that the system queues ahead of the loop: half of the table, so that connections of
one moment do not close each other."""
STOP_MS_MAX: Final = 1_000
_UNAVAILABLE: Final = 503
_NEEDS: Final = (Need(Action.GET, ResourceKind.CLUSTER, ClusterPart.NODES),)
_Show = Callable[[Request], Awaitable[Response]]


class _Server(uvicorn.Server):
    """A server that leaves signals to the lifecycle."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpServer:
    """Serves the pages at one address."""

    def __init__(
        self,
        health: Health,
        registry: CollectorRegistry,
        pages: Pages,
        limits: PortLimits,
        guard: Guard | None,
    ) -> None:
        """`guard` decides who reads the pages; None: all that reach the port do."""
        self._health, self._guard = health, guard
        self.own_token: Final = secrets.token_hex(32)
        """Opens the pages, too, also before the node knows its users: for tools that may read its
        directory."""

        async def make_metrics() -> bytes:
            await pages.look()
            return generate_latest(registry)

        self.metrics_page: Final = SharedPage(make_metrics)
        self._status_page = SharedPage(lambda: bytes(JSONResponse(pages.status()).body))
        self._events_page = SharedPage(_events)
        self.connections: Final = HttpConnections(limits)
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self, address: Address, page_file: int | None = None) -> int:
        """Listen and serve, over TLS with the certificate and key in an open file; return the port.
        Raises PortTakenError, and OSError or ValueError for a certificate that cannot be used."""
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        try:
            bound = socket.create_server((address.host, address.port), family=family)
        except OSError as error:
            reason = error.strerror or str(error)
            raise PortTakenError("http_listen", str(address), reason) from error
        routes = [
            Route("/metrics", self._guarded(self._metrics)),
            Route("/live", self._live),
            Route("/ready", self._ready),
            Route("/status", self._guarded(self._show_status)),
            Route("/events", self._guarded(self._events)),
        ]
        config = uvicorn.Config(
            Starlette(routes=routes),
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            http=cast("type[asyncio.Protocol]", partial(HttpConnection, self.connections)),
            h11_max_incomplete_event_size=REQUEST_SIZE_BYTES_MAX,
            backlog=BACKLOG_COUNT_MAX,
            headers=[("connection", "close")],
            timeout_graceful_shutdown=STOP_MS_MAX // 1000,
        )
        if page_file is not None:
            config.load()
            path = Path(f"/dev/fd/{page_file}")
            config.ssl = page_context(path, path)
        self._server = _Server(config)
        self._task = asyncio.create_task(self._server.serve([bound]), name="http")
        return int(bound.getsockname()[1])

    async def stop(self) -> None:
        """Close the port and the connections."""
        if self._server is not None and self._task is not None:
            self._server.should_exit = True
            await self._task
        self.metrics_page.stop()
        self._status_page.stop()
        self._events_page.stop()

    def _guarded(self, show: _Show) -> _Show:
        """Return a page that is shown to users with the right to it."""
        guard = self._guard
        if guard is None:
            return show
        own = f"Bearer {self.own_token}".encode()

        async def serve(request: Request) -> Response:
            shown = request.headers.get("authorization", "")
            if hmac.compare_digest(shown.encode(), own):
                return await show(request)
            caller = guard.by_header(shown)
            caller.host = "" if request.client is None else network_of(request.client.host)
            if guard.is_on and guard.users is NO_USERS:
                what = "the node knows its users once its log is open"
                return _refusal(_UNAVAILABLE, what, "it is starting", "ask again, or read /ready")
            try:
                guard.check(caller, f"Http{request.url.path}", _NEEDS)
            except UnauthenticatedError:
                do = "show a token of a user in the header: Authorization: Bearer TOKEN"
                return _refusal(401, f"this page needs a user, and {caller.why.what}", _WHY, do)
            except ForbiddenError as error:
                return _refusal(403, *str(error).rsplit("; ", 2))
            except NodeError as error:
                return _refusal(_UNAVAILABLE, str(error), _WHY, "ask again, or read /ready")
            return await show(request)

        return serve

    # All are async, since starlette runs plain functions on threads, and the values belong to the
    # loop.

    async def _metrics(self, _request: Request) -> Response:
        return Response(await self.metrics_page.get(), media_type=CONTENT_TYPE_LATEST)

    async def _live(self, _request: Request) -> Response:
        return _answer(self._health.live())

    async def _ready(self, _request: Request) -> Response:
        return _answer(self._health.ready())

    async def _show_status(self, _request: Request) -> Response:
        return Response(await self._status_page.get(), media_type="application/json")

    async def _events(self, _request: Request) -> Response:
        return Response(await self._events_page.get(), media_type="application/json")


def _events() -> bytes:
    """Return /events: all that are kept, the oldest first."""
    events = [event._asdict() | {"values": json.loads(event.values)} for event in EVENTS.after(0)]
    return json.dumps({"began_unix_ms": EVENTS.began_unix_ms, "events": events}).encode()


_WHY: Final = f"this node has users = on, and a page needs {_NEEDS[0]}; probes are open"


def _refusal(status: int, *lines: str) -> Response:
    challenge = {"www-authenticate": "Bearer"} if status == 401 else {}
    return PlainTextResponse("\n".join(lines) + "\n", status, challenge)


def _answer(verdict: HealthVerdict) -> Response:
    content = {"ok": verdict.is_good, "reason": verdict.reason}
    return JSONResponse(content, status_code=200 if verdict.is_good else _UNAVAILABLE)
