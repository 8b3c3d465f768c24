"""The door of gRPC: what a call shows of its user, and the check of the call in front of a method.

Owns the headers and the names of client certificates. Must not know what a method does.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import Any, Final

from node.users.guard import Caller, Guard
from node.users.needs import NODE_CALLS, Needs, of_nodes
from node.users.node_proofs import HEADER, BadProofError, NodeProofs, signed_form
from raft.messages import NO_NODE

AUTHORIZATION: Final = "authorization"
_CERTIFICATE_NAMES: Final = (
    ("x509_common_name", "CN="),
    ("peer_dns", "DNS:"),
    ("peer_uri", "URI:"),
    ("peer_email", "EMAIL:"),
)
"""Properties of gRPC, and how credentials write them."""


class Door:
    """Knows the callers of one server."""

    def __init__(self, guard: Guard, proofs: NodeProofs) -> None:
        """`proofs` tells nodes from users."""
        self.guard: Final = guard
        self._proofs = proofs

    def caller(self, method: str, needs: Needs, request: Any, context: Any) -> Caller:
        """Return the caller of a call: what its headers show goes before its certificate."""
        headers = dict(context.invocation_metadata() or ())
        if HEADER in headers and (needs is of_nodes or method in NODE_CALLS):
            texts = {name: value for name, value in headers.items() if isinstance(value, str)}
            try:
                node_id, is_peer = self._proofs.signer(method, signed_form(request), texts)
            except BadProofError as error:
                return self.guard.unproven(error)
            return self.guard.node(node_id if is_peer else NO_NODE)
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
            caller = self.caller(method, needs, request, context)
            with guard.serving(caller, method, needs, request):
                return await function(request)

        return call

    def stream(
        self, method: str, needs: Needs, function: Callable[[Any], AsyncIterator[Any]]
    ) -> Callable[[Any, Any], AsyncIterator[Any]]:
        """The same for a method that streams answers."""
        guard = self.guard

        async def call(request: Any, context: Any) -> AsyncIterator[Any]:
            caller = self.caller(method, needs, request, context)
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
