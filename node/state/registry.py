"""The list of tables of the replicated state, one a feature, and their files.

Owns which table applies which command, and how a table is written down. Must not know any rule of a
feature: `tables/table.py` defines a table.
"""

import json
import re
from typing import Any, Final

from node.config.limits import Limits
from node.state.tables.dead_letters import DeadLettersTable
from node.state.tables.delay import DelayTable
from node.state.tables.group_settings import GroupSettingsTable
from node.state.tables.incarnations import IncarnationsTable
from node.state.tables.key_values import KeyValuesTable
from node.state.tables.level import LevelTable
from node.state.tables.moved_offsets import MovedOffsetsTable
from node.state.tables.pop import PopTable
from node.state.tables.table import NOTHING, Table, TableImage
from node.state.tables.topic_origins import TopicOriginsTable
from node.state.tables.topic_rates import TopicRatesTable
from node.state.tables.transactions import TransactionsTable
from node.state.tables.users import UsersTable
from quorumlog.foreign_json import read_json

_ANY_LIMITS: Final = Limits()
_QUOTED_KEY: Final = re.compile(r'"([0-9]+)":')
_STRING_OR_KEY: Final = re.compile(
    r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|([{,]\s*)(-?[0-9]+)(\s*:)', re.DOTALL
)
"""A string, in which nothing is a key, or a key that Java wrote without quotes. A string without an
end goes to the end of the text: else each of its quotes would be tried as a beginning."""

TABLES: Final[tuple[type[Table], ...]] = (
    DelayTable,
    GroupSettingsTable,
    DeadLettersTable,
    PopTable,
    TransactionsTable,
    IncarnationsTable,
    TopicOriginsTable,
    KeyValuesTable,
    MovedOffsetsTable,
    LevelTable,
    UsersTable,
    TopicRatesTable,
)


def check_tables(tables: dict[str, TableImage]) -> dict[str, TableImage]:
    """Return the given images of tables, all of which are known here and can be read.

    Raises NewerLevelError, ValueError, KeyError or TypeError. A replica that passed one over would
    differ from the others permanently: its version is too old.
    """
    unknown = tables.keys() - {kind.name for kind in TABLES}
    if unknown:
        raise ValueError(f"parts of a newer version: {', '.join(sorted(unknown))}")
    for kind in TABLES:
        kind(_ANY_LIMITS, tables.get(kind.name, NOTHING))
    return tables


def encode_table(kind: type[Table], image: TableImage, written_unix_ms: int) -> str:
    """Return the text of a table's file, with RocketMQ's dataVersion in front."""
    version = {"counter": image.version, "stateVersion": 0, "timestamp": written_unix_ms}
    document = {"dataVersion": version, **kind.encode(image.content)}
    text = json.dumps(document, indent="\t", allow_nan=False) + "\n"
    return _QUOTED_KEY.sub(r"\1:", text) if kind.has_integer_keys else text


def decode_table(kind: type[Table], text: str) -> TableImage:
    """Read a table's file. Raises as `checkpoint_tables.decode_topics` for another shape."""
    document = load_table(text)
    version = int(document.pop("dataVersion")["counter"])
    return TableImage(version, kind.decode(document))


def load_table(text: str, *, is_unique: bool = False) -> dict[str, Any]:
    """Read a file of tables, with integer keys quoted or not. Raises ValueError, TypeError."""
    table = read_json(_STRING_OR_KEY.sub(_quoted, text), is_unique=is_unique)
    if not isinstance(table, dict):
        raise TypeError(f"not an object: {text[:20]!r}")
    return table


def _quoted(match: re.Match[str]) -> str:
    return match[0] if match[2] is None else f'{match[1]}"{match[2]}"{match[3]}'
