"""Mutations of bytes: what a broken disk, a broken link or a hostile sender makes of good ones.

Owns the mutations; must not know targets beyond their words. Everything is drawn from the `Random`
that is passed in.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import Final

_STACKED_MAX: Final = 6
_NUMBERS: Final = (0, 1, 2, 7, 8, 16, 63, 64, 100, 127, 128, 255, 256, 1 << 15, 1 << 16, 1 << 20)
_WIDTHS: Final = (1, 2, 4, 8)

Mutation = Callable[[Random, bytearray], None]


def mutated(random: Random, data: bytes, others: Sequence[bytes], words: Sequence[bytes]) -> bytes:
    """Return `data` after one to six mutations; parts of `others` and `words` may be put in."""
    out = bytearray(data)
    for _ in range(random.randint(1, _STACKED_MAX)):
        choice = random.randrange(len(_PLAIN) + 3)
        if choice < len(_PLAIN):
            _PLAIN[choice](random, out)
        elif choice == len(_PLAIN) and words:
            _put(random, out, random.choice(words))
        elif others:
            _splice(random, out, random.choice(others))
    return bytes(out)


def _place(random: Random, out: bytearray) -> int:
    return random.randrange(len(out) + 1)


def _flip(random: Random, out: bytearray) -> None:
    if out:
        out[random.randrange(len(out))] ^= 1 << random.randrange(8)


def _byte(random: Random, out: bytearray) -> None:
    if out:
        out[random.randrange(len(out))] = random.choice(
            (0, 1, 127, 128, 255, random.randrange(256))
        )


def _number(random: Random, out: bytearray) -> None:
    """Write an interesting number over some bytes: small, at an edge, or the size that is left."""
    width = random.choice(_WIDTHS)
    if len(out) < width:
        return
    at = random.randrange(len(out) - width + 1)
    top = 1 << (8 * width)
    value = random.choice(
        (
            random.choice(_NUMBERS),
            -1,
            top >> 1,
            (top >> 1) - 1,
            len(out) - at,
            random.getrandbits(64),
        )
    )
    value += random.choice((0, 0, 0, 1, -1))
    out[at : at + width] = (value % top).to_bytes(width, random.choice(("big", "little")))


def _add(random: Random, out: bytearray) -> None:
    """Add a little to a number that is there."""
    width = random.choice(_WIDTHS)
    if len(out) < width:
        return
    at = random.randrange(len(out) - width + 1)
    value = int.from_bytes(out[at : at + width], "big") + random.randint(-16, 16)
    out[at : at + width] = (value % (1 << (8 * width))).to_bytes(width, "big")


def _remove(random: Random, out: bytearray) -> None:
    at = _place(random, out)
    del out[at : at + random.choice((1, 1, 2, 4, 8, random.randint(1, 64)))]


def _cut(random: Random, out: bytearray) -> None:
    del out[_place(random, out) :]


def _insert(random: Random, out: bytearray) -> None:
    at = _place(random, out)
    out[at:at] = random.randbytes(random.choice((1, 2, 4, 8, random.randint(1, 32))))


def _repeat(random: Random, out: bytearray) -> None:
    """Repeat a part: loops and lists grow."""
    at = _place(random, out)
    part = bytes(out[at : at + random.randint(1, 64)])
    out[at:at] = part * random.choice((1, 1, 2, 8))


def _splice(random: Random, out: bytearray, other: bytes) -> None:
    at, from_at = _place(random, out), random.randrange(len(other) + 1)
    out[at : at + random.choice((0, 16, len(out)))] = other[from_at:]


def _put(random: Random, out: bytearray, word: bytes) -> None:
    at = _place(random, out)
    out[at : at + random.choice((0, len(word)))] = word


_PLAIN: Final[tuple[Mutation, ...]] = (
    _flip,
    _byte,
    _number,
    _add,
    _remove,
    _cut,
    _insert,
    _repeat,
)
