"""The configurations that a log holds, from the one in force at its beginning on.

Owns the list, and that a restart finds it again without looking at every entry: the index of a
configuration entry is durable before the entry is written, and the configuration of the beginning
before its entry is deleted, beside the one of the beginning that stays if the deletion is not done.
Must not know who takes part, nor why.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from node.replication.raft.storage.configuration_record import decode_configuration
from node.replication.raft.storage.hard_state import NodeFile
from raft.messages import ConfigurationAt, Index
from store.errors import CorruptionError
from store.files.failpoints import hit
from store.ledger.entry import KIND_CONFIGURATION
from store.ledger.ledger import Ledger


class LogConfigurations:
    """One per log. The loop's thread only."""

    def __init__(self, ledger: Ledger, node_file: NodeFile) -> None:
        self._ledger: Final = ledger
        self._node_file: Final = node_file
        self._known: list[ConfigurationAt] = []
        """Oldest first. More than one may lie below the beginning, as files are deleted."""

    @property
    def all(self) -> list[ConfigurationAt]:
        """Oldest first: the one of the beginning if it is known, then one per entry."""
        first_index = self._ledger.first_index
        below = [at for at in self._known if at.index < first_index]
        return below[-1:] + self._known[len(below) :]

    def load(self) -> None:
        """Read the entries at the indexes that were noted. Raises CorruptionError."""
        ledger, record = self._ledger, self._node_file.record
        bases = record.former_base_configuration, record.base_configuration
        found = {at.index: at for at in bases if at is not None}
        for index in record.configuration_indexes:
            if not ledger.first_index <= index <= ledger.last_index:
                continue
            entry = ledger.entry(index)
            if entry.kind == KIND_CONFIGURATION:  # Else another entry has taken its place.
                configuration = decode_configuration(entry.body)
                if configuration is None:
                    expected, body = "a configuration", f"of entry {index}"
                    raise CorruptionError(ledger.directory, 0, "body", expected, body)
                found[index] = ConfigurationAt(index, configuration)
        self._known = [found[index] for index in sorted(found)]

    def note(self, indexes: Iterable[Index]) -> None:
        """Entries here may hold a configuration soon. Durable on return; errors as NodeFile.save.

        What is noted already is not written again, so nothing fails that was noted in time."""
        record, ledger = self._node_file.record, self._ledger
        new = set(indexes).difference(record.configuration_indexes)
        if new:
            # Of the others, those of entries that are not there (any more) are of no use.
            first, last = ledger.first_index, ledger.last_index
            kept = [index for index in record.configuration_indexes if first <= index <= last]
            noted = tuple(sorted({*kept, *new}))
            self._node_file.save(replace(record, configuration_indexes=noted))

    def add(self, new: list[ConfigurationAt]) -> None:
        """These entries are about to be written. They are noted on return; errors as `note`."""
        hit("log_configurations.before_note")
        self.note(at.index for at in new)
        self._known += new
        hit("log_configurations.noted")

    def cut(self, lo: Index) -> None:
        """The entries from `lo` on are gone."""
        self._known = [at for at in self._known if at.index < lo]

    def keep_base(self, base_index: Index) -> None:
        """The entries up to `base_index` are about to be deleted: keep what was in force there.

        Should they stay, everything is as it was. Durable on return; errors as NodeFile.save."""
        record, known = self._node_file.record, self.all
        below = [at for at in known if at.index <= base_index]
        if below and below[-1] != record.base_configuration:
            is_known = known[0].index < self._ledger.first_index
            former = known[0] if is_known else None
            self._node_file.save(
                replace(record, base_configuration=below[-1], former_base_configuration=former)
            )
            self._known = known
