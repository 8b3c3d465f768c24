"""What a browser may do with a page, and what another site cannot make it do.

Owns the headers of all answers, the names under which the console may be called, and the token that
each change has to bring. Must not know any page.
"""

import hmac
import ipaddress
import secrets
from collections.abc import Iterable
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HEADERS: Final = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_LOCAL: Final = frozenset({"localhost", "ip6-localhost"})


class RefusedError(Exception):
    """A request that this console does not carry out. Its text is for the person who sent it."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Shield:
    """Wraps the whole application."""

    def __init__(self, app: ASGIApp, names: Iterable[str]) -> None:
        """`names`: host names, beside IP addresses and localhost, under which it may be called. A
        page of another site whose name was pointed at this machine is called by that name."""
        self._app, self._names = app, {*names, *_LOCAL}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or refuse it."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
            await send(message)

        if scope["type"] != "http":
            return
        host = Headers(scope=scope).get("host", "")
        if not self._is_own(host):
            text = "This console is not called by that name; see qlog console --help: --name"
            await PlainTextResponse(text, 421)(scope, receive, send_with_headers)
            return
        await self._app(scope, receive, send_with_headers)

    def _is_own(self, host: str) -> bool:
        name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
        name = name.strip("[]").lower()
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name in self._names
        return True


class Tokens:
    """The token that forms carry; one for each process of a console."""

    def __init__(self) -> None:
        self.value: Final = secrets.token_urlsafe(32)

    def check(self, request: Request, given: str) -> None:
        """Raise RefusedError unless a change comes from a page of this console."""
        headers = request.headers
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "same-origin")
        own = f"{request.url.scheme}://{headers.get('host', '')}"
        if origin != own or site != "same-origin":
            raise RefusedError(403, "The request comes from a page of another site.")
        if not hmac.compare_digest(given.encode(), self.value.encode()):
            raise RefusedError(403, "The form is of an earlier run of this console; load it again.")
