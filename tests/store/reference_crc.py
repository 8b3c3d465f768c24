"""Checksums by definition (crcmod), to compare the fast ones of `store.files.checksum` with."""

from collections.abc import Callable
from typing import Final

import crcmod.predefined

reference_crc32: Final[Callable[[bytes], int]] = crcmod.predefined.mkCrcFun("crc-32")
reference_crc32c: Final[Callable[[bytes], int]] = crcmod.predefined.mkCrcFun("crc-32c")
