"""The list of parts of the replicated state, one a feature, and their files.

Owns which part applies which command, and how a part is written down. Must not know any rule of a
feature: `tables/table.py` defines a part.
"""

import json
import re
from collections.abc import Mapping
from typing import Final

from node.config.limits import Limits
from node.runtime.json_text import read_json
from node.state.tables import dead_letters, delay, group_settings, incarnations, pop, transactions
from node.state.tables.table import NOTHING, Part, PartContent, PartImage, PartKind

__all__ = [
    "NOTHING",
    "PARTS",
    "Part",
    "PartContent",
    "PartImage",
    "PartKind",
    "check_parts",
    "decode_part",
    "encode_part",
    "kinds_by_command",
]

_ANY_LIMITS: Final = Limits()
_QUOTED_KEY: Final = re.compile(r'"(\d+)":')
_UNQUOTED_KEY: Final = re.compile(r"([{,]\s*)(\d+)\s*:")

PARTS: Final[tuple[PartKind, ...]] = (
    PartKind(
        delay.NAME,
        delay.DelayPart,
        delay.DelayPart,
        frozenset({"take_delayed", "cancel_delayed"}),
        delay.FILE_NAME,
        delay.to_document,
        delay.from_document,
        has_integer_keys=True,
    ),
    PartKind(
        group_settings.NAME,
        group_settings.GroupSettingsPart,
        group_settings.GroupSettingsPart,
        frozenset({"put_group"}),
        "",
    ),
    PartKind(
        dead_letters.NAME,
        dead_letters.DeadLettersPart,
        dead_letters.DeadLettersPart,
        frozenset({"mark_resent"}),
        dead_letters.FILE_NAME,
    ),
    PartKind(
        pop.NAME,
        pop.PopPart,
        pop.PopPart,
        pop.COMMANDS,
        pop.FILE_NAME,
        pop.to_document,
        pop.from_document,
    ),
    PartKind(
        transactions.NAME,
        transactions.TransactionsPart,
        transactions.TransactionsPart,
        transactions.COMMANDS,
        transactions.FILE_NAME,
    ),
    PartKind(
        incarnations.NAME,
        incarnations.IncarnationsPart,
        incarnations.IncarnationsPart,
        incarnations.COMMANDS,
        incarnations.FILE_NAME,
    ),
)


def check_parts(parts: dict[str, PartImage]) -> dict[str, PartImage]:
    """Return the given images of parts, all of which are known here and can be read.

    Raises ValueError, KeyError or TypeError. A replica that passed one over would differ from the
    others for good: its version is too old.
    """
    unknown = parts.keys() - {kind.name for kind in PARTS}
    if unknown:
        raise ValueError(f"parts of a newer version: {', '.join(sorted(unknown))}")
    for kind in PARTS:
        kind.make(_ANY_LIMITS, parts.get(kind.name, NOTHING))
    return parts


def kinds_by_command(kinds: tuple[PartKind, ...]) -> Mapping[str, str]:
    """Return the name of the part that applies each command."""
    return {command: kind.name for kind in kinds for command in kind.commands}


def encode_part(kind: PartKind, image: PartImage, written_unix_ms: int) -> str:
    """Return the text of a part's file, with RocketMQ's dataVersion in front."""
    version = {"counter": image.version, "stateVersion": 0, "timestamp": written_unix_ms}
    document = {"dataVersion": version, **kind.encode(image.content)}
    text = json.dumps(document, indent="\t", allow_nan=False) + "\n"
    return _QUOTED_KEY.sub(r"\1:", text) if kind.has_integer_keys else text


def decode_part(kind: PartKind, text: str) -> PartImage:
    """Read a part's file. Raises ValueError, KeyError or TypeError for another shape."""
    if kind.has_integer_keys:
        text = _UNQUOTED_KEY.sub(r'\1"\2":', text)
    document = read_json(text)
    if not isinstance(document, dict):
        raise TypeError(f"not an object: {text[:20]!r}")
    version = int(document.pop("dataVersion")["counter"])
    return PartImage(version, kind.decode(document))
