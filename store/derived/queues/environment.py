"""The environment that the queues of a store share, and their question about doubtful units.

Owns the sizes, the bound on open files, and the question; must not know how it is answered.
"""

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from store import format as fmt
from store.derived.queues.tail_files import TailFiles
from store.derived.sum_files import SumFiles
from store.errors import DerivedDamageError
from store.files.descriptor_cache import DescriptorCache
from store.files.file_system import FileSystem

UNIT_SIZE_BYTES: Final = fmt.CONSUME_QUEUE_UNIT_SIZE_BYTES


class Doubted(Protocol):
    """The part of a queue that a doubt needs."""

    topic: str
    queue_id: int

    def damage_error(self, lo: int, hi: int) -> DerivedDamageError:
        """Return the error for damage that a reader met in the units [lo, hi)."""
        ...


class Doubt(NamedTuple):
    """A block of units that may not be what was written: the offsets [lo, hi), as they were read.

    `is_known`: the block's checksum is known, and differs. Else it is not known.
    """

    queue: Doubted
    lo: int
    hi: int
    units: bytes
    is_known: bool


OnDoubt = Callable[[Doubt], bytes]
"""Returns the right units of the block. Raises DerivedDamageError while it cannot."""


def _no_log(doubt: Doubt) -> bytes:
    """Return the units unless they are known to be wrong: there is no log to compare with."""
    if doubt.is_known:
        raise doubt.queue.damage_error(doubt.lo, doubt.hi)
    return doubt.units


class QueueEnvironment:
    """The environment that all queues of one store share."""

    __slots__ = (
        "descriptors",
        "directory",
        "fs",
        "new_names",
        "on_doubt",
        "sums",
        "tail_files",
        "units_per_file",
    )

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        units_per_file: int,
        descriptors: DescriptorCache,
        sums: SumFiles,
    ) -> None:
        self.fs = fs
        self.directory = directory
        self.units_per_file = units_per_file
        self.descriptors = descriptors
        self.tail_files: Final = TailFiles(descriptors)
        self.sums = sums
        self.on_doubt: OnDoubt = _no_log
        self.new_names: set[str] = set()
        """Directories above queues that got a name which is not durable. Changed by adding only;
        a sync replaces the set."""

    @property
    def file_size_bytes(self) -> int:
        """Size of every queue file."""
        return self.units_per_file * UNIT_SIZE_BYTES
