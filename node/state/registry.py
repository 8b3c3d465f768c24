"""The list of tables of the replicated state, one a feature, and their files.

Owns which table applies which command, and how a table is written down. Must not know any rule of a
feature: `tables/table.py` defines a table.
"""

import json
import re
from collections.abc import Mapping
from typing import Final

from node.config.limits import Limits
from node.runtime.json_text import read_json
from node.state.tables import (
    dead_letters,
    delay,
    group_settings,
    incarnations,
    key_values,
    pop,
    topic_origins,
    transactions,
)
from node.state.tables.table import NOTHING, Table, TableContent, TableImage, TableKind

__all__ = [
    "NOTHING",
    "TABLES",
    "Table",
    "TableContent",
    "TableImage",
    "TableKind",
    "check_tables",
    "decode_table",
    "encode_table",
    "kinds_by_command",
]

_ANY_LIMITS: Final = Limits()
_QUOTED_KEY: Final = re.compile(r'"(\d+)":')
_UNQUOTED_KEY: Final = re.compile(r"([{,]\s*)(\d+)\s*:")

TABLES: Final[tuple[TableKind, ...]] = (
    TableKind(
        delay.NAME,
        delay.DelayTable,
        delay.DelayTable,
        frozenset({"take_delayed", "cancel_delayed"}),
        delay.FILE_NAME,
        delay.to_document,
        delay.from_document,
        has_integer_keys=True,
    ),
    TableKind(
        group_settings.NAME,
        group_settings.GroupSettingsTable,
        group_settings.GroupSettingsTable,
        frozenset({"put_group"}),
        "",
    ),
    TableKind(
        dead_letters.NAME,
        dead_letters.DeadLettersTable,
        dead_letters.DeadLettersTable,
        frozenset({"mark_resent"}),
        dead_letters.FILE_NAME,
    ),
    TableKind(
        pop.NAME,
        pop.PopTable,
        pop.PopTable,
        pop.COMMANDS,
        pop.FILE_NAME,
        pop.to_document,
        pop.from_document,
    ),
    TableKind(
        transactions.NAME,
        transactions.TransactionsTable,
        transactions.TransactionsTable,
        transactions.COMMANDS,
        transactions.FILE_NAME,
    ),
    TableKind(
        incarnations.NAME,
        incarnations.IncarnationsTable,
        incarnations.IncarnationsTable,
        incarnations.COMMANDS,
        incarnations.FILE_NAME,
    ),
    TableKind(
        topic_origins.NAME,
        topic_origins.TopicOriginsTable,
        topic_origins.TopicOriginsTable,
        frozenset(),
        topic_origins.FILE_NAME,
    ),
    TableKind(
        key_values.NAME,
        key_values.KeyValuesTable,
        key_values.KeyValuesTable,
        frozenset({"put_key_value"}),
        key_values.FILE_NAME,
    ),
)


def check_tables(tables: dict[str, TableImage]) -> dict[str, TableImage]:
    """Return the given images of tables, all of which are known here and can be read.

    Raises ValueError, KeyError or TypeError. A replica that passed one over would differ from the
    others permanently: its version is too old.
    """
    unknown = tables.keys() - {kind.name for kind in TABLES}
    if unknown:
        raise ValueError(f"parts of a newer version: {', '.join(sorted(unknown))}")
    for kind in TABLES:
        kind.make(_ANY_LIMITS, tables.get(kind.name, NOTHING))
    return tables


def kinds_by_command(kinds: tuple[TableKind, ...]) -> Mapping[str, str]:
    """Return the name of the table that applies each command."""
    return {command: kind.name for kind in kinds for command in kind.commands}


def encode_table(kind: TableKind, image: TableImage, written_unix_ms: int) -> str:
    """Return the text of a table's file, with RocketMQ's dataVersion in front."""
    version = {"counter": image.version, "stateVersion": 0, "timestamp": written_unix_ms}
    document = {"dataVersion": version, **kind.encode(image.content)}
    text = json.dumps(document, indent="\t", allow_nan=False) + "\n"
    return _QUOTED_KEY.sub(r"\1:", text) if kind.has_integer_keys else text


def decode_table(kind: TableKind, text: str) -> TableImage:
    """Read a table's file. Raises as `checkpoint_tables.decode_topics` for another shape."""
    if kind.has_integer_keys:
        text = _UNQUOTED_KEY.sub(r'\1"\2":', text)
    document = read_json(text)
    if not isinstance(document, dict):
        raise TypeError(f"not an object: {text[:20]!r}")
    version = int(document.pop("dataVersion")["counter"])
    return TableImage(version, kind.decode(document))
