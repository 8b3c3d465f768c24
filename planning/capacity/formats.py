"""The sizes of what a node writes for messages, from the formats of its files.

Owns the sums. The numbers of the formats come from outside: `planning.commands` reads them
from the store, and a test compares the sums with files that the store wrote.
"""

from dataclasses import dataclass

TOPIC_SIZE_BYTES_V1_MAX = 127
"""A longer topic makes a V2 record, whose length field has one byte more (storage-formats 1.3)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatSizes:
    """The constants of the formats and the settings that sizes depend on."""

    record_size_bytes_min: int
    """A V1 record with IPv4 hosts, without topic, properties and body."""
    entry_header_size_bytes: int
    """Header of an entry: one for each batch."""
    command_record_size_bytes: int
    """Record that names producer and sequence, at its largest: one for each batch."""
    queue_unit_size_bytes: int
    """One for each record, that of the command too."""
    index_unit_size_bytes: int
    """Unit of the ledger's index: one for each entry."""
    key_entry_size_bytes: int
    key_slot_size_bytes: int
    key_slot_count: int
    """Slots of a key index file."""
    key_entry_count: int
    """Entries of a key index file."""
    checksum_size_bytes: int
    units_per_checksum: int
    """Units of a queue, or entries of a key index, that share one checksum."""
    file_size_bytes: int
    """Size of a log file; retention removes whole files."""
    prepared_file_count: int
    """Log files that are filled with zeros ahead of the log."""
    batch_size_bytes_max: int
    """Largest entry, its header included."""
    disk_warn_ratio: float
    """Used part of a disk from which operators are warned: a plan stays below it."""
    window_size_bytes: int
    """Bytes that a leader sends to a follower before the first of them is acked."""

    def record_size_bytes(self, *, body: int, topic: int, properties: int) -> int:
        """Return the size of a message's record; all sizes in bytes."""
        is_v2 = topic > TOPIC_SIZE_BYTES_V1_MAX
        return self.record_size_bytes_min + is_v2 + topic + properties + body

    def entry_size_bytes(self, record_size_bytes: int, count: int) -> int:
        """Return the size in the log of a batch of `count` records of that size."""
        fixed = self.entry_header_size_bytes + self.command_record_size_bytes
        return fixed + count * record_size_bytes

    def derived_size_bytes(self, count: int, key_count: int) -> float:
        """Return what a batch adds to queues, indexes and checksums; `key_count` keys a message."""
        units, keys = count + 1, count * key_count
        slots = self.key_slot_size_bytes * self.key_slot_count / self.key_entry_count
        checksums = self.checksum_size_bytes / self.units_per_checksum
        return (
            units * (self.queue_unit_size_bytes + checksums)
            + self.index_unit_size_bytes
            + keys * (self.key_entry_size_bytes + slots + checksums)
        )

    @property
    def key_file_size_bytes(self) -> int:
        """Size of a key index file, which it has from the beginning."""
        slots = self.key_slot_count * self.key_slot_size_bytes
        return slots + self.key_entry_count * self.key_entry_size_bytes
