"""Target of settings: the notation of single values in files, variables and flags."""

from random import Random
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from node.config.types import Address, AddressAutoOrOff, Addresses, DurationMs, Peers, SizeBytes
from tests.fuzz.structure import text
from tests.fuzz.target import FuzzTarget, claim

_KINDS: Final[tuple[Any, ...]] = (SizeBytes, DurationMs, Addresses, AddressAutoOrOff, Peers)
_READERS: Final[tuple[TypeAdapter[Any], ...]] = tuple(map(TypeAdapter, _KINDS))


def _values(data: bytes) -> None:
    """The first byte chooses the kind of setting."""
    if not data:
        return
    said = data[1:].decode("utf-8", "replace")
    found = _READERS[data[0] % len(_READERS)].validate_python(said)
    if isinstance(found, Address):
        claim(Address.parse(str(found)) == found, f"{found} reads otherwise")
    elif isinstance(found, int):
        claim(found >= 0, f"{said!r} is {found}")


def _examples(random: Random) -> list[bytes]:
    values = ("64MiB", "1.5 GiB", "10s", "500ms", "a:1, b:2", "[::1]:8081", "auto", "off",
              "1=a:1/a:2,2=b:1/b:2", "9" * 300 + ".5 d", text(random))  # fmt: skip
    return [bytes((n,)) + value.encode("utf-8", "replace") for n in range(5) for value in values]


TARGETS: Final = (
    FuzzTarget(
        "settings-values",
        "a value of a setting is refused with what to use, or reads the same after it is written",
        _values,
        ("node.config.types",),
        _examples,
        (ValidationError,),
        words=(b"9" * 400, b".5", b"GiB", b"d", "٣".encode()),
    ),
)
