"""The configurations that a log holds, from the one in force at its beginning on.

Owns the list, and that a restart finds it again without looking at every entry: the index of a
configuration entry is durable before the entry is written, and the configuration of the beginning
before its entry is deleted. Must not know who takes part, nor why.
"""

from dataclasses import replace
from typing import Final

from node.configuration import decode_configuration
from node.hard_state import NodeFile
from raft.messages import ConfigurationAt, Index
from store.errors import CorruptionError
from store.ledger import Ledger
from store.ledger_entry import KIND_CONFIGURATION


class LogConfigurations:
    """One per log. The loop's thread only."""

    def __init__(self, ledger: Ledger, node_file: NodeFile) -> None:
        self._ledger: Final = ledger
        self._node_file: Final = node_file
        self.all: list[ConfigurationAt] = []
        """Oldest first: the one of the beginning if it is known, then one per entry."""

    def load(self) -> None:
        """Read the entries at the indexes that were noted. Raises CorruptionError."""
        ledger, record = self._ledger, self._node_file.record
        base = record.base_configuration
        found = [base] if base is not None else []
        for index in record.configuration_indexes:
            if not ledger.first_index <= index <= ledger.last_index:
                continue
            entry = ledger.entry(index)
            if entry.kind == KIND_CONFIGURATION:  # Else another entry has taken its place.
                configuration = decode_configuration(entry.body)
                if configuration is None:
                    expected, body = "a configuration", f"of entry {index}"
                    raise CorruptionError(ledger.directory, 0, "body", expected, body)
                found.append(ConfigurationAt(index, configuration))
        self.all = found

    def note(self, new: list[ConfigurationAt]) -> None:
        """These entries are about to be written. Durable on return; errors as NodeFile.save."""
        record = self._node_file.record
        kept = [i for i in record.configuration_indexes if i <= self._ledger.last_index]
        indexes = sorted({*kept, *(at.index for at in new)})
        self._node_file.save(replace(record, configuration_indexes=tuple(indexes)))
        self.all += new

    def cut(self, lo: Index) -> None:
        """The entries from `lo` on are gone."""
        self.all = [at for at in self.all if at.index < lo]

    def keep_base(self, base_index: Index) -> None:
        """The entries up to `base_index` are about to be deleted: keep what was in force there.

        Durable on return; errors as NodeFile.save.
        """
        record = self._node_file.record
        below = [at for at in self.all if at.index <= base_index]
        if below and below[-1] != record.base_configuration:
            newer = [at for at in self.all if at.index > base_index]
            indexes = tuple(at.index for at in newer)
            self._node_file.save(
                replace(record, base_configuration=below[-1], configuration_indexes=indexes)
            )
            self.all = [below[-1], *newer]
