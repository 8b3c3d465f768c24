"""Errors for the core about a leader's entries that contradict the ledger.

Owns the translation of the ledger's refusals, and the comparison with entries that are here
already; the consequences are `raft.pump.replica`'s.
"""

from bisect import bisect_left
from typing import Final

from raft.errors import ForeignChainError, PeerProtocolError
from raft.messages import AppendRequest, Index, NodeId
from raft.rules.divergence import check_same_chain
from store.errors import CorruptionError, FileSystemError, ForeignEntryError
from store.format import ENTRY_HEADER_SIZE_BYTES
from store.ledger.ledger import Ledger
from store.ledger.raw import CheckedEntries, chain_crc_of

_FIELDS: Final = frozenset({"chain CRC", "position"})
"""Fields that follow from all entries before."""


def foreign(message: AppendRequest, error: ForeignEntryError, data: bytes) -> PeerProtocolError:
    """Return the error for entries that the ledger refused.

    The whole header identifies a repetition: any bit of it that changes on the way makes the stored
    chain CRC a wrong one."""
    if error.index == message.prev_index + 1 and error.field in _FIELDS:
        header = data[:ENTRY_HEADER_SIZE_BYTES]
        return ForeignChainError(message.sender, str(error), error.index, header)
    return PeerProtocolError(message.sender, str(error))


def chain_at(ledger: Ledger, index: Index) -> int | None:
    """Return the chain CRC of an entry, None without it. The chain has to prove it: a bit that
    flipped on the disk must not look like another history, so a damaged log gives no CRC."""
    if not ledger.first_index - 1 <= index <= ledger.last_index:
        return None
    try:
        return ledger.tail_at(index).link.chain_crc
    except (CorruptionError, FileSystemError):
        return None  # The next reader of that entry, or the scrub, has it repaired.


def check_held(ledger: Ledger, sender: NodeId, checked: CheckedEntries, held: Index) -> None:
    """Compare entries through `held`, which the ledger has by their terms, with those in the
    ledger.

    Raises ForeignChainError with the first one that differs; CorruptionError as `Ledger.tail_at`.
    """

    def here(index: Index) -> int:
        return ledger.tail_at(index).link.chain_crc

    if here(held) == chain_crc_of(checked, held):
        return
    indexes = range(checked.first_index, held)  # Behind the first difference all are different.
    first = checked.first_index + bisect_left(
        indexes, True, key=lambda index: here(index) != chain_crc_of(checked, index)
    )
    check_same_chain(sender, first, here(first), chain_crc_of(checked, first))
