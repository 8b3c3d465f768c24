"""Ext fields of a request: read with their types, and refused by name.

Owns how the texts of ext fields are read. Source: protocol sections 2.3 and 18.
"""

import ipaddress
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from node.rocketmq.remoting.protocol.answers import InvalidError
from store.format import Host

_DIGITS_MAX: Final = 20
TEXT_LENGTH_MAX: Final = 512
"""Characters of a name, with what clients put around it: the longest is a client id of 255."""
VALUE_LENGTH_MAX: Final = 32_767
"""Characters of a text that is no name: a key of a message, a value."""
INT32_MAX: Final = (1 << 31) - 1
INT64_MAX: Final = (1 << 63) - 1
QUEUE_ID_MAX: Final = INT32_MAX // 16 - 1
"""Largest queue id that a broker name may show: with 16 names that of the group is an int32."""


def text_of(
    ext: Mapping[str, str],
    name: str,
    default: str | None = None,
    *,
    length_max: int = TEXT_LENGTH_MAX,
) -> str:
    """Return a text. Raises RefusedError if it is missing and has no default, or is too long."""
    value = ext.get(name, default)
    if value is None:
        raise InvalidError(f"ext field {name} is missing")
    if len(value) > length_max:
        text = f"ext field {name} has {len(value)} characters, the limit is {length_max}"
        raise InvalidError(text)
    return value


def int_of(
    ext: Mapping[str, str],
    name: str,
    default: int | None = None,
    *,
    lo: int = 0,
    hi: int = INT64_MAX,
) -> int:
    """Return a whole number from `lo` to `hi`. Raises RefusedError."""
    text = ext.get(name)
    if text is None:
        if default is None:
            raise InvalidError(f"ext field {name} is missing")
        return default
    digits = text.removeprefix("-")
    if digits.isascii() and digits.isdecimal() and len(digits) <= _DIGITS_MAX:
        value = int(text)
        if lo <= value <= hi:
            return value
    raise InvalidError(f"ext field {name} is {text[:40]!r}, it must be a number from {lo} to {hi}")


def bool_of(ext: Mapping[str, str], name: str) -> bool:
    """Whether a field is "true", in any case; absent and all else is false, as for Java."""
    return ext.get(name, "").lower() == "true"


@lru_cache(maxsize=4096)
def parsed_host(text: str) -> Host | None:
    """Return IP address and port of a text; None if it is anything else."""
    name, _, port = text.rpartition(":")
    try:
        address = ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return None
    is_port = port.isascii() and port.isdecimal() and len(port) <= 5 and int(port) < 65_536
    return (str(address), int(port)) if is_port else None
