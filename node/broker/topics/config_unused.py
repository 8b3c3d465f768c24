"""Fields of a row of RocketMQ's tables that have no effect here, as one text for the operator.

Owns the list of these fields; must not know what is done with the rest of a row. RocketMQ's default
values are left out. A field that is not known here is not named, since its default is not known
either.
"""

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from node.state.checkpoint_tables import GROUP_DEFAULTS, SETTINGS, TOPIC_DEFAULTS
from node.state.tables.topic_types import ATTRIBUTE, TOPIC_TYPES

_READ, _WRITTEN = "readQueueNums", "writeQueueNums"
_RETRY_POLICY: Final = "groupRetryPolicy"
_OBEYED: Final = frozenset(SETTINGS.values()) | {_RETRY_POLICY}


def unused_of_topic(row: Mapping[str, Any]) -> str:
    """Return the fields of a topic without effect here, or an empty text."""
    attributes = dict(row.get("attributes") or {})
    if attributes.get(ATTRIBUTE) in TOPIC_TYPES:
        del attributes[ATTRIBUTE]
    unused = list(_unlike(TOPIC_DEFAULTS, {**row, "attributes": attributes}, ()))
    if row[_READ] != row[_WRITTEN]:
        smaller = min(_READ, _WRITTEN, key=row.__getitem__)
        unused.append(f"{smaller}={row[smaller]}")
    return ", ".join(unused)


def unused_of_group(row: Mapping[str, Any]) -> str:
    """Return the fields of a group without effect here, or an empty text."""
    unused = list(_unlike(GROUP_DEFAULTS, row, _OBEYED))
    policy = row.get(_RETRY_POLICY) or {}
    kind = policy.get("type", "CUSTOMIZED")
    if kind != "CUSTOMIZED":
        unused.append(f"{_RETRY_POLICY}={_text(policy)}")
    return ", ".join(unused)


def _unlike(
    defaults: Mapping[str, Any], row: Mapping[str, Any], obeyed: Collection[str]
) -> Iterator[str]:
    for name, default in defaults.items():
        value = row.get(name)
        if name not in obeyed and value is not None and value != default:
            yield f"{name}={_text(value)}"


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
