"""The routes of the console, and how a page is made, streamed and changed.

Owns the way from a request to a page: each page is an address, a template, and a function that
returns what the template shows. The part of a page with the id `live` is sent again as it changes,
while the page is open. Errors of the cluster are pages, too. Must not know what a page shows.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, urlencode

import jinja2
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from qlog.connection import until
from qlog.console.cluster import Cluster
from qlog.console.links import link
from qlog.console.login import UNAUTHENTICATED, LoginNeededError, Logins
from qlog.console.shield import RefusedError, Shield, Tokens
from qlog.console.shown import FILTERS
from quorumlog.command_errors import ExitCode, explain
from quorumlog.errors import InvalidRequestError, PermissionDeniedError, QuorumlogError

_HERE: Final = Path(__file__).parent
STREAM_COUNT_MAX: Final = 64
FORM_SIZE_BYTES_MAX: Final = 6 << 20
FORMS_SIZE_BYTES_MAX: Final = 24 << 20
"""Of all forms that are on their way."""
_FORM_S: Final = 30.0
"""Time for a form."""
_INTERVAL_S: Final = 2.0
_LIVE: Final = "event: live\ndata: "
_OWN_PATH: Final = re.compile(r"/(?![/\\])[!-~]{0,2000}")
_STATUS: Final = {ExitCode.NOT_FOUND: 404, ExitCode.USAGE: 400, ExitCode.REFUSED: 409}

Context = dict[str, Any]
Show = Callable[[Cluster, Request], Awaitable[Context]]


class Page(NamedTuple):
    """One page."""

    path: str
    template: str
    show: Show
    """Returns what the template shows."""


class Change(NamedTuple):
    """One change, which a form asks for; only consoles that are `full` carry it out."""

    path: str
    page: str
    """Path of the page that has the form."""
    do: Callable[[Cluster, Request, dict[str, str]], Awaitable[tuple[str, str]]]
    """Returns the address of the page to show next, and what was done."""


class Console:
    """The application over one cluster."""

    def __init__(
        self,
        cluster: Cluster,
        pages: Sequence[Page],
        changes: Sequence[Change],
        logins: Logins,
    ) -> None:
        self._cluster, self._logins = cluster, logins
        self._pages = {page.path: page for page in pages}
        self._tokens = Tokens()
        self._stream_count = self.request_count = self._forms_size_bytes = 0
        self.is_stopping = asyncio.Event()
        self._templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader(_HERE / "templates"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters |= FILTERS
        self._templates.globals |= {"link": link, "json": json.dumps}
        self._templates.globals["parts"] = self._templates.get_template("parts.html").module
        self.routes = [
            *(Route(page.path, self._page(page), methods=["GET"]) for page in pages),
            *(
                Route("/stream" + page.path, self._stream(page), methods=["GET"])
                for page in pages
                if "live" in self._templates.get_template(page.template).blocks
            ),
            *(Route(change.path, self._change(change), methods=["POST"]) for change in changes),
            Route("/login", self._show_login, methods=["GET"]),
            Route("/login", self._log_in, methods=["POST"]),
            Route("/logout", self._log_out, methods=["POST"]),
            Mount("/static", StaticFiles(directory=_HERE / "static")),
        ]

    async def idle(self, idle_s: float) -> None:
        """Return once no page was asked for, and none is open, for a time."""
        seen, asked = -1, 0
        while seen != (asked := self.request_count) or self._stream_count:
            seen = asked
            await asyncio.sleep(idle_s)

    def application(self, names: Sequence[str]) -> Starlette:
        """Return the application; `names` as for `Shield`."""
        return Starlette(
            routes=self.routes,
            middleware=[Middleware(Shield, names=names)],
            exception_handlers={404: self._not_found},
        )

    # --- Pages ---

    def _page(self, page: Page) -> Callable[[Request], Awaitable[Response]]:
        async def serve(request: Request) -> Response:
            self.request_count += 1
            try:
                async with self._logins.caller(request) as cluster:
                    context = await page.show(cluster, request)
            except (QuorumlogError, RefusedError) as error:
                refusal = self._error(request, error)
                is_form = refusal.status_code == 400 and request.query_params
                return (is_form and await self._form_again(page, request, error)) or refusal
            if isinstance(context.get("response"), Response):
                return context["response"]  # type: ignore[no-any-return]  # A file.
            return HTMLResponse(self._render(page.template, request, context))

        return serve

    async def _form_again(self, page: Page, request: Request, error: Exception) -> Response | None:
        """Return a page with what is wrong and its form as filled in; None: it cannot be had."""
        path = page.path.format(**request.path_params)
        bare = Request({**request.scope, "path": path, "query_string": b""})
        try:
            async with self._logins.caller(request) as cluster:
                context = await page.show(cluster, bare)
        except (QuorumlogError, RefusedError):
            return None
        if "response" in context:
            return None
        return self._error(request, error, page.template, **context | {"path": path})

    def _render(self, template: str, request: Request, context: Context) -> str:
        return self._templates.get_template(template).render(self._all(request, context))

    def _all(self, request: Request, context: Context) -> Context:
        path = request.scope["path"].removeprefix("/stream")
        return {
            "path": path,
            "query": dict(request.query_params),
            "is_full": self._cluster.is_full,
            "token": self._tokens.value,
            "cluster_id": self._cluster.client.cluster_id,
            "has_login": self._logins.has(request),
            "what": "",
            "typed": getattr(request.state, "typed", {}),
            "done": self._tokens.opened(request.query_params.get("done", "")),
            **context,
        }

    def _error(
        self, request: Request, error: Exception, template: str = "error.html", **context: Any
    ) -> Response:
        """Return a page with what went wrong."""
        if isinstance(error, LoginNeededError) and request.method == "GET":
            return RedirectResponse(f"/login?{urlencode({'to': _path(request)})}", 303)
        why = do = ""
        if isinstance(error, RefusedError):
            status, what = error.status, str(error)
        else:
            said = explain(error)
            status, what, why, do = _STATUS.get(said.exit_code, 503), said.what, said.why, said.do
            if said.code.endswith(("out_of_range", "no_beginning")):
                status = 404
            elif isinstance(error, PermissionDeniedError):
                status = 401 if said.code == UNAUTHENTICATED else 403
            elif isinstance(error, InvalidRequestError) or said.code == "node.bad_request":
                status = 400
        context |= {"what": what, "why": why, "do": do, "status": status}
        return HTMLResponse(self._render(template, request, context), status)

    async def _not_found(self, request: Request, _: Exception) -> Response:
        return self._error(request, RefusedError(404, "There is no such page."))

    # --- Streams ---

    def _stream(self, page: Page) -> Callable[[Request], Awaitable[Response]]:
        async def serve(request: Request) -> Response:
            if self._stream_count >= STREAM_COUNT_MAX:
                return Response("too many open pages", 503)
            try:
                first = await self._live(page, request)
            except LoginNeededError as error:
                return Response(str(error), error.status)
            except (QuorumlogError, RefusedError) as error:
                refusal = self._error(request, error)
                if refusal.status_code < 500:  # Else the page waits for the cluster.
                    return refusal
                first = _trouble(error)
            return StreamingResponse(
                self._changes_of(page, request, first), media_type="text/event-stream"
            )

        return serve

    async def _live(self, page: Page, request: Request) -> str:
        """Return the live part of a page as an event."""
        async with self._logins.caller(request) as cluster:
            shown = await page.show(cluster, request)
        if "response" in shown:
            raise RefusedError(400, "This address is a file, and no page that can be followed.")
        template = self._templates.get_template(page.template)
        context = template.new_context(self._all(request, shown))
        return f"{_LIVE}{json.dumps(''.join(template.blocks['live'](context)))}\n\n"

    async def _changes_of(self, page: Page, request: Request, event: str) -> AsyncIterator[str]:
        """Yield the live part of a page whenever it has changed; `event` is the first."""
        self._stream_count += 1
        last = ""
        try:
            while event:
                is_same = event == last and event.startswith(_LIVE)
                yield "event: same\ndata:\n\n" if is_same else event
                last = event
                event = await until(self.is_stopping, self._next(page, request)) or ""
        finally:
            self._stream_count -= 1

    async def _next(self, page: Page, request: Request) -> str:
        """Return the event that follows after a pause."""
        await asyncio.sleep(_INTERVAL_S)
        try:
            return await self._live(page, request)
        except (QuorumlogError, RefusedError) as error:
            return _trouble(error)

    # --- Changes ---

    def _change(self, change: Change) -> Callable[[Request], Awaitable[Response]]:
        async def serve(request: Request) -> Response:
            try:
                if not self._cluster.is_full:
                    text = "This console only reads; qlog console --mode full may change things."
                    raise RefusedError(403, text)
                self._tokens.check_origin(request)
                request.state.typed = form = await self._form(request)
                self._tokens.check(form.pop("token", ""))
                async with self._logins.caller(request) as cluster:
                    where, done = await change.do(cluster, request, form)
            except (QuorumlogError, RefusedError) as error:
                again = await self._form_again(self._pages[change.page], request, error)
                return again or self._error(request, error)
            query = urlencode({"done": self._tokens.sealed(done)})
            return RedirectResponse(f"{where}{'&' if '?' in where else '?'}{query}", 303)

        return serve

    async def _form(self, request: Request) -> dict[str, str]:
        """Return the fields of a form, the last of each name. Raises RefusedError, for what the
        headers say before a body is read."""
        kind = request.headers.get("content-type", "").partition(";")[0]
        if kind != "application/x-www-form-urlencoded":
            raise RefusedError(415, "A form comes as application/x-www-form-urlencoded.")
        size = request.headers.get("content-length", "0")
        data = bytearray()
        try:
            async with asyncio.timeout(_FORM_S):
                if len(size) > 19 or int(size) > FORM_SIZE_BYTES_MAX:
                    raise RefusedError(413, f"A form may have {FORM_SIZE_BYTES_MAX:,} bytes.")
                async for part in request.stream():
                    data += part
                    self._forms_size_bytes += len(part)
                    if len(data) > FORM_SIZE_BYTES_MAX:
                        raise RefusedError(413, f"A form may have {FORM_SIZE_BYTES_MAX:,} bytes.")
                    if self._forms_size_bytes > FORMS_SIZE_BYTES_MAX:
                        raise RefusedError(503, "Too many forms come at once; send it again.")
            return await asyncio.to_thread(_fields, data)
        except TimeoutError as error:
            raise RefusedError(408, f"The form took more than {_FORM_S:.0f} s.") from error
        except ValueError as error:
            raise RefusedError(400, f"This is no form: {error}.") from error
        finally:
            self._forms_size_bytes -= len(data)

    # --- Logins ---

    async def _show_login(self, request: Request) -> Response:
        context = {"to": _path(request, request.query_params.get("to", ""))}
        return HTMLResponse(self._render("login.html", request, context))

    async def _log_in(self, request: Request) -> Response:
        self.request_count += 1
        try:
            self._tokens.check_origin(request)
            form = await self._form(request)
            self._tokens.check(form.pop("token", ""))
            to = _path(request, form.get("to", ""))
            answer = RedirectResponse(to, 303)
            try:
                await self._logins.log_in(form.get("user_token", "").strip(), request, answer)
            except (PermissionDeniedError, InvalidRequestError) as error:
                return self._error(request, error, "login.html", to=to)
        except (QuorumlogError, RefusedError) as error:
            return self._error(request, error)
        return answer

    async def _log_out(self, request: Request) -> Response:
        try:
            self._tokens.check_origin(request)
            self._tokens.check((await self._form(request)).get("token", ""))
        except RefusedError as error:
            return self._error(request, error)
        await self._logins.log_out(request)
        return RedirectResponse("/login", 303)


def _path(request: Request, to: str | None = None) -> str:
    """Return the address of a page of this console; that of the overview for any other text."""
    if to is None:
        to = f"{request.url.path}{'?' if request.url.query else ''}{request.url.query}"
    return to if _OWN_PATH.fullmatch(to) else "/"


def _fields(data: bytearray) -> dict[str, str]:
    return dict(parse_qsl(data.decode("ascii"), keep_blank_values=True, max_num_fields=100))


def _trouble(error: Exception) -> str:
    text = str(error) if isinstance(error, RefusedError) else explain(error).what
    return f"event: trouble\ndata: {json.dumps(text)}\n\n"
