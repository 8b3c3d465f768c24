"""How values look in a page: numbers, sizes, times, and bytes that a stranger chose.

Owns the filters of the templates. Texts stay texts: the templates escape what they show, and what
no eye can tell apart (control characters, marks of direction) is written out here.
"""

import json
import re
from datetime import UTC, datetime
from typing import Final

from markupsafe import Markup

from quorumlog.foreign_text import TEXT_LENGTH_MAX, shown, shown_lines

BODY_SIZE_BYTES_MAX: Final = 64 << 10
"""Of a body a page shows so much; the rest can be had as a file."""
_FOLDED_LENGTH_MAX: Final = 4 * BODY_SIZE_BYTES_MAX
"""JSON that has more characters once it is folded is shown as it came."""
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[][{}:,]|[^][{}:,\s"]+')
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_ROW: Final = 16


def number(value: float | None) -> str:
    """Return a number with separators; a dash for none."""
    if value is None:
        return "\N{EN DASH}"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}".removesuffix(".0")


def size(size_bytes: float | None) -> str:
    """Return a size in the unit that fits."""
    if size_bytes is None:
        return "\N{EN DASH}"
    for unit in _UNITS:
        if size_bytes < 1024 or unit == _UNITS[-1]:
            break
        size_bytes /= 1024
    return f"{size_bytes:,.0f} {unit}" if unit == "B" else f"{size_bytes:,.1f} {unit}"


def share(ratio: float | None) -> str:
    """Return a ratio in percent."""
    return "\N{EN DASH}" if ratio is None else f"{ratio:.1%}"


def moment(unix_ms: int | None) -> str:
    """Return a time, UTC; a dash for none. Of its parts a narrow page shows the time of day."""
    if not unix_ms or unix_ms < 0:
        return "\N{EN DASH}"
    try:
        text = datetime.fromtimestamp(unix_ms / 1000, UTC).isoformat(" ", "milliseconds")
    except (OSError, OverflowError, ValueError):
        return f"{unix_ms} ms"
    day, time, rest = text[:11], text[11:19], text[19:].replace("+00:00", " UTC")
    more = '<span class="more">{}</span>'
    form = Markup(f'<span title="{{}}">{more}{{}}{more}</span>')
    return form.format(f"{day}{time}{rest}", day, time, rest)


def duration(ms: float | None) -> str:
    """Return a duration in the units that fit."""
    if ms is None:
        return "\N{EN DASH}"
    if ms < 1_000:
        return f"{ms:,.0f} ms" if ms >= 10 or not ms else f"{ms:.1f} ms"
    seconds = ms / 1000
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds:.1f} s"


def plain(value: object, length_max: int = TEXT_LENGTH_MAX) -> str:
    """Return a text on one line, with control characters and marks of direction written out; of a
    long one the beginning, which says so."""
    text = str(value)
    return shown(text[:length_max]) + cut(length_max, len(text), "characters")


def cut(shown_count: int, count: int, unit: str) -> str:
    """Return what stands behind a text that ends early; empty: it is whole."""
    if count <= shown_count:
        return ""
    return f"\N{HORIZONTAL ELLIPSIS} (the first {shown_count:,} of {count:,} {unit})"


def body_views(body: bytes) -> dict[str, str]:
    """Return the beginning of a body in each form that fits it: json, text, hex."""
    views, part = {}, body[:BODY_SIZE_BYTES_MAX]
    try:
        text = part.decode()
    except UnicodeDecodeError as error:
        # The cut may have parted a character.
        is_cut = len(body) > len(part) and error.start >= len(part) - 3
        text = part[: error.start].decode() if is_cut else ""
    if text:
        if len(part) == len(body) and (found := _folded(text)):
            views["json"] = found
        views["text"] = shown_lines(text)
    views["hex"] = hex_dump(part)
    return views


def _folded(text: str) -> str:
    """Return a JSON object or array in lines, each value as it is written; empty: it is none."""
    try:
        if not isinstance(json.loads(text, parse_int=str), dict | list):
            return ""
    except (ValueError, RecursionError):
        return ""
    parts, depth, length, before = list[str](), 0, 0, ""
    for token in _TOKEN.findall(text):
        is_end = token in ("]", "}")
        depth -= is_end
        is_first = before in ("[", "{")
        if is_end != is_first or before == ",":  # Between [ and ] of an empty one is nothing.
            gap = "\n" + "  " * depth
        else:
            gap = " " if before == ":" else ""
        depth += token in ("[", "{")
        length += len(gap) + len(token)
        if length > _FOLDED_LENGTH_MAX:
            return ""
        parts += gap, token
        before = token
    return shown_lines("".join(parts))


def hex_dump(data: bytes, position: int = 0) -> str:
    """Return bytes in rows of 16: position, hex, and what is printable."""
    rows = []
    for at in range(0, len(data), _ROW):
        row = data[at : at + _ROW]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        rows.append(f"{position + at:08x}  {row.hex(' '):<47}  {text}")
    return "\n".join(rows)


def thing(kind: str) -> str:
    """Return what a kind of specimen is called."""
    word = kind.replace("_", " ")
    return f"{word.removeprefix('key ')} of the key index" if word.startswith("key ") else word


FILTERS: Final = {
    "number": number, "size": size, "share": share, "moment": moment, "duration": duration,
    "plain": plain, "thing": thing,
}  # fmt: skip
