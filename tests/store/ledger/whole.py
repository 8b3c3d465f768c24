"""The check of a whole open ledger: entries by the product's check, unused bytes beside it."""

from store.errors import CorruptionError
from store.files.mapped_file import MappedFile
from store.ledger.entry import check_zeros
from store.ledger.reader import LedgerReader
from store.ledger.verify import check_range


def check_whole(ledger: LedgerReader) -> None:
    """Raise CorruptionError at the first byte that is not as it must be."""
    start, tail = ledger.start, ledger.tail
    for file in ledger.files.files[:1]:
        _check_zeros(file, file.position, start.min_position)
    check_range(ledger, start.link.entry_index + 1, tail.link.entry_index + 1)
    for file in ledger.files.files:
        _check_zeros(file, max(file.position, tail.end_position), file.end_position)


def damage_of(ledger: LedgerReader) -> CorruptionError | None:
    """Return what `check_whole` finds."""
    try:
        check_whole(ledger)
    except CorruptionError as error:
        return error
    return None


def _check_zeros(file: MappedFile, lo: int, hi: int) -> None:
    problem = check_zeros(file.read_any(lo, hi - lo)) if lo < hi else None
    if problem is not None:
        at = lo - file.position + problem.at
        raise CorruptionError(file.path, at, problem.field, problem.expected, problem.actual)
