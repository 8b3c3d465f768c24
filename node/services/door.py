"""The door of gRPC: what a call shows of its user, and the check of the call in front of a method.

Owns the headers and the names of client certificates. Must not know what a method does.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from hmac import compare_digest
from typing import Any, Final

from node.users.guard import Caller, Guard
from node.users.needs import Needs

AUTHORIZATION: Final = "authorization"
TOKEN_HEADER: Final = "x-quorumlog-token"
"""The token of the node that is called, in hexadecimal digits, which its peers know."""
_CERTIFICATE_NAMES: Final = (
    ("x509_common_name", "CN="),
    ("peer_dns", "DNS:"),
    ("peer_uri", "URI:"),
    ("peer_email", "EMAIL:"),
)
"""Properties of gRPC, and how credentials write them."""


class Door:
    """Knows the callers of one server."""

    def __init__(self, guard: Guard, own_token: bytes) -> None:
        """`own_token` is that of this process, which its peers know."""
        self.guard: Final = guard
        self._own_token = own_token.hex().encode()

    def caller(self, context: Any) -> Caller:
        """Return the caller of a call: what its headers show goes before its certificate."""
        headers = dict(context.invocation_metadata() or ())
        token = headers.get(TOKEN_HEADER)
        if isinstance(token, str) and compare_digest(token.encode(), self._own_token):
            return self.guard.node()
        authorization = headers.get(AUTHORIZATION)
        if authorization:
            shown = authorization if isinstance(authorization, str) else ""
            return self.guard.by_header(shown or "binary")
        return self.guard.by_certificate(certificate_names(context.auth_context()))

    def unary(
        self, method: str, needs: Needs, function: Callable[[Any], Awaitable[Any]]
    ) -> Callable[[Any, Any], Awaitable[Any]]:
        """Return a method of one answer that is checked first, with the call's context."""
        guard = self.guard

        async def call(request: Any, context: Any) -> Any:
            caller = self.caller(context)
            with guard.serving(caller, method, needs, request):
                return await function(request)

        return call

    def stream(
        self, method: str, needs: Needs, function: Callable[[Any], AsyncIterator[Any]]
    ) -> Callable[[Any, Any], AsyncIterator[Any]]:
        """The same for a method that streams answers."""
        guard = self.guard

        async def call(request: Any, context: Any) -> AsyncIterator[Any]:
            caller = self.caller(context)
            with guard.serving(caller, method, needs, request):
                async for answer in function(request):
                    yield answer

        return call


def certificate_names(shown: Mapping[str, Iterable[bytes]]) -> list[str]:
    """Return the names of a client certificate, as credentials have them; empty: there is none."""
    return [
        prefix + value.decode("utf-8", "replace")
        for key, prefix in _CERTIFICATE_NAMES
        for value in shown.get(key, ())
    ]
