"""When the certificates of a PEM file end.

Owns as much of DER (X.690, RFC 5280 section 4.1) as leads to that one field: `ssl` shows it of
authorities only, and `cryptography` would cost a start 0.1 s and 10 MB for one number. Must not
judge certificates: OpenSSL has done so when it loaded the file.
"""

import contextlib
import re
import ssl
from datetime import datetime
from typing import Final

_PEM: Final = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_EXPLICIT_VERSION: Final = 0xA0
_UTC_TIME: Final = 0x17


def earliest_end_unix_s(pem: str) -> int | None:
    """Return when the first certificate of a file ends; None if none in it can be read."""
    ends = []
    for one in _PEM.findall(pem):
        with contextlib.suppress(ValueError, IndexError):  # No start depends on it.
            ends.append(_end_unix_s(ssl.PEM_cert_to_DER_cert(one)))
    return min(ends, default=None)


def _end_unix_s(der: bytes) -> int:
    _, at, _ = _element(der, 0)  # Certificate.
    _, at, _ = _element(der, at)  # The signed part of it.
    tag, _, hi = _element(der, at)
    if tag == _EXPLICIT_VERSION:  # Absent in version 1.
        at = hi
    for _ in range(3):  # Serial number, algorithm, issuer.
        _, _, at = _element(der, at)
    _, at, _ = _element(der, at)  # Validity.
    _, _, at = _element(der, at)  # Start of the validity.
    tag, lo, hi = _element(der, at)
    text = der[lo:hi].decode("ascii")
    if tag == _UTC_TIME:  # A year of two digits, from 1950 to 2049.
        text = ("20" if text < "50" else "19") + text
    return int(datetime.strptime(f"{text}+0000", "%Y%m%d%H%M%SZ%z").timestamp())


def _element(der: bytes, at: int) -> tuple[int, int, int]:
    """Return the tag of the element at `at`, and where its content begins and ends."""
    tag, size_bytes, lo = der[at], der[at + 1], at + 2
    if size_bytes & 0x80:
        length_hi = lo + (size_bytes & 0x7F)
        size_bytes, lo = int.from_bytes(der[lo:length_hi]), length_hi
    return tag, lo, lo + size_bytes
