"""The key-value configuration of a name server: read and changed by tools, on the leader.

Owns the answers; the values are in the replicated state, so every node of the cluster has them.
"""

from node.rocketmq.remoting.calls.json_bodies import json_body
from node.rocketmq.remoting.calls.shared import Shared
from node.rocketmq.remoting.conversation import Request
from node.rocketmq.remoting.protocol.answers import Answer, RefusedError
from node.rocketmq.remoting.protocol.codes import RequestCode, ResponseCode
from node.rocketmq.remoting.protocol.fields import VALUE_LENGTH_MAX, text_of
from node.state.tables.key_values import KeyValuesTable
from quorumlog.pb.state_pb2 import Command


class KeyValueCalls:
    """Answers the requests about keys. One per gateway."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared

    async def change(self, request: Request) -> Answer:
        """Put or delete a key."""
        ext = request.command.ext
        put = Command.PutKeyValue(namespace=text_of(ext, "namespace"), key=text_of(ext, "key"))
        if request.command.code == RequestCode.PUT_KV_CONFIG:
            put.value = text_of(ext, "value", length_max=VALUE_LENGTH_MAX)
        await self._shared.broker.own_appends.submit(Command(put_key_value=put))
        return Answer()

    async def value(self, request: Request) -> Answer:
        """Return the value of a key."""
        ext = request.command.ext
        namespace, key = text_of(ext, "namespace"), text_of(ext, "key")
        found = self._values(namespace).get(key)
        if found is None:
            text = f"No config item, Namespace: {namespace} Key: {key}"
            raise RefusedError(ResponseCode.QUERY_NOT_FOUND, text)
        return Answer(ext={"value": found})

    async def values(self, request: Request) -> Answer:
        """Return all values of a namespace."""
        namespace = text_of(request.command.ext, "namespace")
        found = self._values(namespace)
        if not found:
            text = f"No config item, Namespace: {namespace}"
            raise RefusedError(ResponseCode.QUERY_NOT_FOUND, text)
        return Answer(body=json_body({"table": found}))

    def _values(self, namespace: str) -> dict[str, str]:
        context = self._shared.context
        context.check_leads()
        return context.state.table(KeyValuesTable).values(namespace)
