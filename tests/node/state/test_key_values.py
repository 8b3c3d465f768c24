"""Keys of the name server's configuration: their limits, and that deleted ones are gone."""

from dataclasses import replace
from typing import cast

from node.config.limits import Limits
from node.errors.common import BadRequestError, LimitReachedError
from node.state.tables.key_values import KeyValuesTable
from node.state.tables.table import NOTHING, Core, TableImage
from quorumlog.pb.state_pb2 import Command

LIMITS = replace(Limits(), key_value_count_max=2, key_value_size_bytes_max=6)
NO_CORE = cast(Core, None)


def _put(key: str, value: str | None) -> Command:
    return Command(put_key_value=Command.PutKeyValue(namespace="n", key=key, value=value))


def test_keys_have_limits_and_go() -> None:
    table = KeyValuesTable(LIMITS, NOTHING)

    def apply(key: str, value: str | None) -> object:
        return table.apply(NO_CORE, _put(key, value), 0)

    assert apply("a", "1") is None
    assert apply("b", "") is None
    assert table.values("n") == {"a": "1", "b": ""}
    version = table.version
    assert isinstance(apply("c", "1"), LimitReachedError)
    assert isinstance(apply("a", "\N{EURO SIGN}12"), BadRequestError)  # Bytes count.
    assert apply("d", None) is None
    assert table.version == version
    image = TableImage(version, table.content())
    assert apply("a", "2") is None
    assert apply("b", None) is None
    assert apply("c", "1") is None
    assert table.version == version + 3
    assert KeyValuesTable(LIMITS, image).values("n") == {"a": "1", "b": ""}
    for key in "ac":
        assert apply(key, None) is None
    assert (table.content(), table.values("n")) == ({}, {})
