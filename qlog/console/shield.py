"""What a browser may do with a page, and what another site cannot make it do.

Owns the headers of all answers, the names under which the console may be called, and the token that
each change has to bring. Must not know any page.
"""

import hashlib
import hmac
import ipaddress
import logging
import secrets
from collections.abc import Iterable
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quorumlog.foreign_text import shown

_HEADERS: Final = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_LOCAL: Final = frozenset({"localhost", "ip6-localhost"})
_LINE_LENGTH_MAX: Final = 500
_log: Final = logging.getLogger("qlog.console")


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
        self._app, self._names = app, {*map(str.lower, names), *_LOCAL}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or refuse it."""

        has_begun = False

        async def send_with_headers(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
            await send(message)

        if scope["type"] != "http":
            return

        async def refuse(status: int, text: str) -> None:
            answer = PlainTextResponse(text, status, {"connection": "close"})
            await answer(scope, receive, send_with_headers)

        headers = Headers(scope=scope)
        if "content-length" in headers and "transfer-encoding" in headers:
            await refuse(400, "A request has Content-Length or Transfer-Encoding, and not both.")
            return
        if not self._is_own(headers.get("host", "")):
            text = "This console is not called by that name; see qlog console --help: --name"
            await refuse(421, text)
            return
        try:
            await self._app(scope, receive, send_with_headers)
        except ClientDisconnect:
            return
        except Exception as error:  # noqa: BLE001 - One answer and one line for all of them.
            what = f"{scope['method']} {scope['path']}: {type(error).__name__}: {error}"
            _log.error("%s", shown(what, _LINE_LENGTH_MAX))
            if not has_begun:
                await refuse(500, "This page failed; the log of the console says why.")

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

    def sealed(self, text: str) -> str:
        """Return a text of the console's own, as `opened` takes it."""
        return f"{hmac.new(self.value.encode(), text.encode(), hashlib.sha256).hexdigest()}.{text}"

    def opened(self, sealed: str) -> str:
        """Return a text that `sealed` made; empty: another made it."""
        text = sealed.partition(".")[2]
        is_own = hmac.compare_digest(sealed.encode(), self.sealed(text).encode())
        return text if is_own else ""

    def check_origin(self, request: Request) -> None:
        """Raise RefusedError unless a request comes from a page of this console."""
        headers = request.headers
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "same-origin")
        own = f"{request.url.scheme}://{headers.get('host', '')}"
        if origin != own or site != "same-origin":
            text = "The request comes from a page of another site."
            if origin == f"https://{headers.get('host', '')}":
                text += " Or the proxy before this console does not send X-Forwarded-Proto."
            raise RefusedError(403, text)

    def check(self, given: str) -> None:
        """Raise RefusedError unless a form is of a page of this console."""
        if not hmac.compare_digest(given.encode(), self.value.encode()):
            raise RefusedError(403, "The form is of an earlier run of this console; load it again.")
