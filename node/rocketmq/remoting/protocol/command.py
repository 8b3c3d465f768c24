"""A command of the remoting protocol: its header in both forms, its ext fields and its body.

Owns the bytes of a header in both directions. Must not know what a code means. A header is read in
the form in which it came, JSON or binary, and written as JSON, which all clients read. One that a
node forwards grows by `FORWARDED_GROWTH_SIZE_BYTES` at most: JSON makes six bytes of one here and
there, so a large header is binary.

Strings of a header are text for people and keys for calls, never paths or code. What no client
sends is a FrameFault, which closes the connection: a wrong type, an integer out of range, an ext
field that is no text, more ext fields than the limit.
"""

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from node.framed.frames import JSON_KIND, LENGTH_SIZE_BYTES, ROCKETMQ_KIND, FrameFault, Reason
from node.rocketmq.remoting.protocol.marks import ADDED
from node.runtime.json_text import dump_json, read_bounded_json

EXT_COUNT_MAX: Final = 256
"""Ext fields of a header; the calls with most have 20, and hooks of clients add some."""
FORWARDED_GROWTH_SIZE_BYTES: Final = 64 << 10
"""Bytes by which a forwarded frame may be larger than the client's: the node's own ext fields, and
numbers that a client wrote shorter than we do. JSON up to this size may have been less before."""
VERSION: Final = 479
"""What answers carry as version: RocketMQ 5.3.3. Consumers with SQL filters compare it."""
LANGUAGE: Final = "OTHER"
# fmt: off
_LANGUAGES: Final = (
    "JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER", "HTTP", "GO", "PHP",
    "OMS", "RUST", "NODE_JS",
)
# fmt: on
_LANGUAGE_LENGTH_MAX: Final = 16
RESPONSE: Final = 1
ONEWAY: Final = 2
"""Bits of a flag: a response, and a request that gets none."""
_PREFIX: Final = struct.Struct(">II")
_TEXTS: Final = frozenset({str})
_INT32: Final = range(-(1 << 31), 1 << 31)
_FIXED: Final = struct.Struct(">hBhii")
"""Code, language, version, opaque and flag of a binary header."""
_SIZE: Final = struct.Struct(">i")
_KEY_SIZE: Final = struct.Struct(">h")
_USUAL_SIZE_BYTES: Final = 4_096
"""Headers up to this size are read without a look at their form."""
_KEY_SIZE_BYTES_MAX: Final = (1 << 15) - 1
_NUMBERS: Final = re.compile(rb'(?<!\\)"(code|opaque|flag)"\s*:\s*(-?\d{1,10})(?!\d)')
"""Numbers of a JSON header: within a text a quote is never without a backslash."""
_CUT_CODES: Final = {code & 0xFFFF: code for code in (200_050, 200_051, 200_053, 200_151)}
"""A binary header cuts the codes of pop to 16 bits."""


@dataclass(slots=True)
class Command:
    """One command, a request or a response."""

    code: int
    opaque: int = 0
    flag: int = 0
    ext: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    remark: str | None = None
    version: int = 0
    language: str = LANGUAGE


def decode(kind: int, header: bytes, body: bytes, *, is_from_node: bool = False) -> Command:
    """Read a command. One that a node forwards may have more ext fields, and has them as that node
    read them: empty ones, and halves of surrogate pairs. Raises FrameFault."""
    count_max = EXT_COUNT_MAX + (len(ADDED) if is_from_node else 0)
    try:
        if kind == JSON_KIND:
            return _from_json(header, body, count_max)
        return _from_binary(header, body, count_max, is_from_node=is_from_node)
    except (ValueError, RecursionError, struct.error) as error:
        raise FrameFault(Reason.HEADER, f"a header that cannot be read: {error}") from None


def _from_json(header: bytes, body: bytes, count_max: int) -> Command:
    document = _read(header)
    if type(document) is not dict:
        raise ValueError("it is no object")
    ext = document.get("extFields")
    if ext is None:
        ext = {}
    elif type(ext) is not dict or len(ext) > count_max:
        raise ValueError("extFields are no object of a moderate size")
    if {*map(type, ext.values())} - _TEXTS:
        ext = {name: _text(value) for name, value in ext.items() if value is not None}
    remark, language = document.get("remark"), document.get("language", LANGUAGE)
    if remark is not None and type(remark) is not str:
        raise ValueError("remark is no text")
    return Command(
        _int32(document, "code"),
        _int32(document, "opaque"),
        _int32(document, "flag"),
        ext,
        body,
        remark,
        _int32(document, "version"),
        language if type(language) is str and len(language) <= _LANGUAGE_LENGTH_MAX else LANGUAGE,
    )


def _read(header: bytes) -> Any:
    # Most headers have some hundred bytes; only those of large properties are measured first.
    if len(header) <= _USUAL_SIZE_BYTES:
        try:
            return orjson.loads(header)
        except ValueError:
            pass  # Also half of a surrogate pair.
    return read_bounded_json(header, len(header))


def _int32(document: Mapping[str, Any], name: str) -> int:
    value = document.get(name, 0)
    if type(value) is not int or value not in _INT32:
        raise ValueError(f"{name} is no int32")
    return value


def _text(value: object) -> str:
    """Return an ext field as Java reads it: numbers and booleans become text."""
    if value is True or value is False:
        return "true" if value else "false"
    if isinstance(value, (str, int, float)):
        return str(value)
    raise ValueError("an ext field is no text")


def decode_ends(kind: int, header: bytes) -> Command:
    """Read code, opaque and flag of a command that is too large, or that `decode` refuses, from
    both ends of its header: JSON of some clients has them before the ext fields, and of others
    behind. Raises FrameFault."""
    try:
        if kind == ROCKETMQ_KIND:
            code, _, _, opaque, flag = _FIXED.unpack_from(header)
            return Command(_CUT_CODES.get(code & 0xFFFF, code), opaque, flag)
        front, _, back = header.partition(b'"extFields"')
        numbers = {
            name.decode(): int(text)
            for part in (back, front)
            for name, text in _NUMBERS.findall(part)
        }
        if "opaque" not in numbers:
            raise ValueError("it has no opaque at either end")
        code, opaque, flag = (_int32(numbers, name) for name in ("code", "opaque", "flag"))
        return Command(code, opaque, flag)
    except (ValueError, struct.error) as error:
        raise FrameFault(Reason.HEADER, f"a header that cannot be read: {error}") from None


def _from_binary(header: bytes, body: bytes, count_max: int, *, is_from_node: bool) -> Command:
    errors = "surrogatepass" if is_from_node else "strict"
    code, language, version, opaque, flag = _FIXED.unpack_from(header)
    remark, at = _sized(header, _FIXED.size)
    fields, at = _sized(header, at)
    if at != len(header):
        raise ValueError(f"{len(header) - at} bytes behind the ext fields")
    ext: dict[str, str] = {}
    lo = 0
    while lo < len(fields):
        (size_bytes,) = _KEY_SIZE.unpack_from(fields, lo)
        lo += _KEY_SIZE.size
        if not 0 <= size_bytes <= len(fields) - lo:
            raise ValueError("a key longer than the ext fields")
        name = fields[lo : lo + size_bytes].decode("utf-8", errors)
        value, lo = _sized(fields, lo + size_bytes)
        if value or is_from_node:  # Java reads an empty one as absent.
            ext[name] = value.decode("utf-8", errors)
        if len(ext) > count_max:
            raise ValueError(f"more than {count_max} ext fields")
    return Command(
        _CUT_CODES.get(code & 0xFFFF, code),
        opaque,
        flag,
        ext,
        body,
        remark.decode() or None,
        version,
        _LANGUAGES[language] if language < len(_LANGUAGES) else LANGUAGE,
    )


def _sized(data: bytes, at: int) -> tuple[bytes, int]:
    """Return the bytes behind a size, and where they end."""
    (size_bytes,) = _SIZE.unpack_from(data, at)
    lo = at + _SIZE.size
    if not 0 <= size_bytes <= len(data) - lo:
        raise ValueError(f"{size_bytes} bytes announced, {len(data) - lo} there")
    return data[lo : lo + size_bytes], lo + size_bytes


def encode_head(command: Command) -> bytes:
    """Return everything of a frame but its body, which must follow directly."""
    return _head(dump_json(_document(command)), JSON_KIND, len(command.body))


def encode_forwarded_head(command: Command) -> bytes:
    """Return the same for a node. Raises ValueError for a name without room in either form."""
    try:
        header = orjson.dumps(_document(command))
    except TypeError:  # Half of a surrogate pair, which the leader has to see as it came.
        header = b""
    if 0 < len(header) <= FORWARDED_GROWTH_SIZE_BYTES:
        return _head(header, JSON_KIND, len(command.body))
    return _head(_binary(command), ROCKETMQ_KIND, len(command.body))


def _head(header: bytes, kind: int, body_size_bytes: int) -> bytes:
    length = LENGTH_SIZE_BYTES + len(header) + body_size_bytes
    return _PREFIX.pack(length, kind << 24 | len(header)) + header


def _document(command: Command) -> dict[str, object]:
    document: dict[str, object] = {
        "code": command.code,
        "extFields": command.ext,
        "flag": command.flag,
        "language": command.language,
        "opaque": command.opaque,
        "serializeTypeCurrentRPC": "JSON",
        "version": command.version or VERSION,
    }
    if command.remark is not None:
        document["remark"] = command.remark
    return document


def _binary(command: Command) -> bytes:
    parts = []
    for name, value in command.ext.items():
        key, text = name.encode("utf-8", "surrogatepass"), value.encode("utf-8", "surrogatepass")
        if len(key) > _KEY_SIZE_BYTES_MAX:
            rule = f"an ext field's name has {len(key)} bytes, at most {_KEY_SIZE_BYTES_MAX} fit"
            raise ValueError(rule)
        parts += [_KEY_SIZE.pack(len(key)), key, _SIZE.pack(len(text)), text]
    fields = b"".join(parts)
    language = command.language if command.language in _LANGUAGES else LANGUAGE
    # Only compared with small numbers.
    version = min(max(command.version or VERSION, 0), _KEY_SIZE_BYTES_MAX)
    code = (command.code + 0x8000 & 0xFFFF) - 0x8000
    fixed = _FIXED.pack(code, _LANGUAGES.index(language), version, command.opaque, command.flag)
    return b"".join((fixed, _SIZE.pack(0), _SIZE.pack(len(fields)), fields))
