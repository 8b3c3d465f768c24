"""The tables of the log microscope as text of 80 columns, and as rows of JSON.

Owns their looks; `store.microscope` has the fields and the verdicts.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import click

from qlog.output import counted
from store.microscope.specimen import FieldRow, FieldTable, FieldVerdict
from store.microscope.specimen import SpecimenKind as Kind

_WIDTH: Final = 80
_HEX_BYTES: Final = 8
"""Bytes of a field whose digits a line shows; the others are in the JSON."""
_NAME_WIDTH: Final = 25  # preparedTransactionOffset
_DIGITS_HI: Final = 28
"""Column behind places and digits."""
_FIELD_COLOURS: Final = ("cyan", "magenta", "blue", "yellow")
_VERDICTS: Final = {
    FieldVerdict.RIGHT: ("right", "green"),
    FieldVerdict.WRONG: ("WRONG", "red"),
    FieldVerdict.NOT_CHECKED: ("-", None),
}
_TITLES: Final = {
    Kind.ENTRY: "entry {number}",
    Kind.ENTRY_BEFORE: "header of the entry before, {number}",
    Kind.LEDGER_UNIT: "unit of the ledger's index for entry {number}",
    Kind.RECORD: "record",
    Kind.BLANK: "blank: the rest of a log file, {number} bytes",
    Kind.QUEUE_UNIT: "queue unit {topic}:{queue_id}:{number}",
    Kind.KEY_HEADER: "header of the key index file",
    Kind.KEY_SLOT: "slot {number} of the key index",
    Kind.KEY_ITEM: "item {number} of the key index",
}


def text_lines(tables: Sequence[FieldTable]) -> Iterator[str]:
    """Yield lines of at most 80 columns, coloured; `click.echo` drops colours for a pipe."""
    for table in tables:
        one = table.specimen
        yield click.style(_TITLES[one.kind].format(**one._asdict()), bold=True)
        yield f"  {one.file}"
        place = f"  byte {one.at}, {counted(len(one.data), 'byte')}"
        yield place + (f", log position {one.position}" if one.position >= 0 else "")
        for number, row in enumerate(table.rows):
            if one.kind is Kind.ENTRY and row.name == "totalSize":
                yield f"  record, log position {one.position + row.at}"
            yield from _row_lines(row, one.data, _FIELD_COLOURS[number % len(_FIELD_COLOURS)])
        yield ""
    wrong = [row.name for table in tables for row in table.rows if _is_wrong(row)]
    if wrong:
        yield f"{counted(len(wrong), 'field')} wrong"
    else:
        yield "nothing is wrong"


def _row_lines(row: FieldRow, data: bytes, colour: str) -> Iterator[str]:
    """Yield the lines of a field: bytes, digits, name, value, verdict; what is long goes below."""
    places = f"{row.at}-{row.at + row.size_bytes - 1}" if row.size_bytes > 1 else str(row.at)
    shown = data[row.at : row.at + min(row.size_bytes, _HEX_BYTES)].hex()
    shown += ".." if row.size_bytes > _HEX_BYTES else ""
    verdict, verdict_colour = _VERDICTS[row.verdict]
    head = f"{places:>9} "
    digits = f"{shown:<18}"[: _DIGITS_HI - len(head)]
    name = row.name if len(row.name) <= _NAME_WIDTH else f"{row.name[: _NAME_WIDTH - 2]}.."
    indent = " " * (_DIGITS_HI + len(" WRONG "))
    room = _WIDTH - len(indent) - _NAME_WIDTH - 1
    is_short = len(row.value) <= room
    line = f" {click.style(f'{verdict:<5}', fg=verdict_colour)} "
    value = row.value if is_short else ""
    yield (head + click.style(digits, fg=colour) + line + f"{name:<{_NAME_WIDTH}} {value}").rstrip()
    texts = [] if is_short else [row.value]
    texts += [f"expected {row.expected}"] if row.expected else []
    for text in texts:
        for lo in range(0, len(text), _WIDTH - len(indent)):
            yield (indent + text[lo : lo + _WIDTH - len(indent)]).rstrip()


def _is_wrong(row: FieldRow) -> bool:
    return row.verdict is FieldVerdict.WRONG


def json_of(tables: Sequence[FieldTable]) -> list[dict[str, object]]:
    """Return the tables as plain values, with all bytes in hex."""
    things: list[dict[str, object]] = []
    for table in tables:
        one = table.specimen
        rows = [
            {**row._asdict(), "hex": one.data[row.at : row.at + row.size_bytes].hex()}
            for row in table.rows
        ]
        things.append(
            {
                **{key: value for key, value in one._asdict().items() if key != "data"},
                "size_bytes": len(one.data),
                "wrong_count": table.wrong_count,
                "rows": rows,
            }
        )
    return things
