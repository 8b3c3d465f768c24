"""The proof that a connection or a call comes from a node of the cluster, which alone may speak for
clients.

Owns the token of this process. Each process draws one at its start and tells it to its peers, once
they have proved themselves on the link between nodes; a connection of remoting, or a call of gRPC,
that shows it is one of a node.
"""

import hmac
from collections.abc import Callable
from typing import Final

from node.rocketmq.remoting.conversation import Request
from node.rocketmq.remoting.protocol.answers import Answer, RefusedError
from node.rocketmq.remoting.protocol.codes import ResponseCode
from node.rocketmq.remoting.protocol.marks import TOKEN
from raft.messages import NodeId

FORWARDING_TOKEN_SIZE_BYTES: Final = 16


class NodeProof:
    """Tells nodes from strangers. One per gateway."""

    def __init__(self, own: bytes, token_of: Callable[[NodeId], bytes]) -> None:
        """`own` is the token of this process, and `token_of` returns that of another node; empty:
        it has not told one yet."""
        self._own: Final = own.hex().encode()
        self.token_of: Final = token_of

    def is_own(self, shown: str) -> bool:
        """Whether hexadecimal digits are the token of this process."""
        digits = shown.encode("utf-8", "replace")
        return bool(self._own) and hmac.compare_digest(digits, self._own)

    async def greet(self, request: Request) -> Answer:
        """Take a connection for one of a node. Raises RefusedError without the right token."""
        if not self.is_own(request.command.ext.get(TOKEN, "")):
            text = "this is not the token of this node, which only its peers know"
            raise RefusedError(ResponseCode.NO_PERMISSION, text)
        request.connection.become_node()
        return Answer()
