"""The key-value configuration of RocketMQ's name server: texts of tools, by namespace and key.

Owns the texts; nothing here acts on them. Ordered topics of RocketMQ keep their broker names in the
namespace ORDER_TOPIC_CONFIG, which tools write and read.
"""

from node.config.limits import Limits
from node.errors.common import BadRequestError, LimitReachedError, NodeError
from node.state.tables.table import Core, Table, TableContent, TableImage
from quorumlog.pb.state_pb2 import Command
from store.files.meta_file import Json


class KeyValuesTable(Table):
    """Namespace to key to value. Keys of a deleted topic stay: tools delete their own."""

    name, commands = "key_values", frozenset({"put_key_value"})
    file_name = "kvConfig.json"
    """RocketMQ's file of this name has the same table."""

    def __init__(self, limits: Limits, image: TableImage) -> None:
        super().__init__(limits, image)
        (table,) = self._parts(image, configTable={})
        self._table: dict[str, dict[str, str]] = {
            str(namespace): {str(key): str(value) for key, value in rows.items()}
            for namespace, rows in table.items()
        }
        self._count = sum(map(len, self._table.values()))

    def values(self, namespace: str) -> dict[str, str]:
        """Return the values of a namespace by key; empty for one that is not known."""
        return dict(self._table.get(namespace, {}))

    def has(self, namespace: str, key: str) -> bool:
        """Whether a key is there."""
        return key in self._table.get(namespace, ())

    def apply(self, _state: Core, command: Command, _position: int) -> NodeError | None:
        """Put or delete a key."""
        put = command.put_key_value
        rows = self._table.get(put.namespace, {})
        is_new = put.key not in rows
        if not put.HasField("value"):
            if not is_new:
                self._delete(put.namespace, put.key)
            return None
        size_bytes = sum(len(text.encode()) for text in (put.namespace, put.key, put.value))
        limits = self._limits
        if size_bytes > limits.key_value_size_bytes_max:
            expected = f"at most {limits.key_value_size_bytes_max} bytes with its key"
            return BadRequestError("value", expected, f"{size_bytes} bytes")
        if is_new and self._count >= limits.key_value_count_max:
            return LimitReachedError("keys", self._count, limits.key_value_count_max)
        self._table.setdefault(put.namespace, {})[put.key] = put.value
        self._count += is_new
        self._changed()
        return None

    def _delete(self, namespace: str, key: str) -> None:
        rows = self._table[namespace]
        del rows[key]
        if not rows:
            del self._table[namespace]
        self._count -= 1
        self._changed()

    def _copy(self) -> TableContent:
        table: dict[str, Json] = {name: dict(rows) for name, rows in self._table.items()}
        return {"configTable": table} if table else {}
