"""Finds the one damaged byte that a CRC-32C names.

Owns the arithmetic; must not know what the bytes are. A CRC is linear: what it differs by depends
on the damage and on how far that is from the end, and not on the data. So the difference is led
back byte by byte until it is that of one byte at the end.
"""

from typing import Final

from store.files.checksum import crc32c

REACH_SIZE_BYTES: Final = 4_096
"""How far it searches. Damage of several bytes is mistaken for one once in 4,000 times."""
_ZERO: Final = crc32c(b"\0")
_TABLE: Final = [crc32c(bytes([value])) ^ _ZERO for value in range(256)]
"""Difference that each damage of the last byte makes."""
_MASK_OF: Final = {difference: mask for mask, difference in enumerate(_TABLE) if mask}
_BY_TOP: Final = {difference >> 24: mask for mask, difference in enumerate(_TABLE)}
assert len(_BY_TOP) == len(_TABLE)


def mended_byte(data: bytes, crc: int) -> tuple[int, int] | None:
    """Return (byte, its right value) with which `data` has the checksum `crc`, from the end on.

    None: it has it already, or no single byte of the last REACH_SIZE_BYTES gives it.
    """
    difference = crc32c(data) ^ crc
    for at in range(len(data) - 1, max(-1, len(data) - 1 - REACH_SIZE_BYTES), -1):
        mask = _MASK_OF.get(difference)
        if mask is not None:
            return at, data[at] ^ mask
        low = _BY_TOP[difference >> 24]
        difference = (difference ^ _TABLE[low]) << 8 & 0xFFFFFFFF | low
    return None
