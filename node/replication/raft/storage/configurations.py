"""The configurations in a log, from the one in force at its beginning on.

Owns the body of their entries, the list, and its recovery after a restart without a look at every
entry: the index of a configuration entry is durable before the entry is written. Before the files
of the beginning are deleted, the configuration of the new beginning is made durable, beside the one
of the old beginning, which stays in force if the deletion is not done. Must not know the members,
nor the reason for a change.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from google.protobuf.message import DecodeError

from node.replication.raft.storage.hard_state import NodeFile
from quorumlog.pb import peer_pb2 as pb
from raft.messages import Configuration, ConfigurationAt, Index
from store.errors import CorruptionError
from store.files.failpoints import hit
from store.ledger.entry import KIND_CONFIGURATION
from store.ledger.ledger import Ledger


def encode_configuration(configuration: Configuration) -> bytes:
    """Return the body of an entry with a configuration."""
    voters, learners = configuration
    return pb.Configuration(voters=voters, learners=learners).SerializeToString(deterministic=True)


def decode_configuration(body: bytes) -> Configuration | None:
    """Return the configuration of an entry's body; None when the bytes are not one."""
    try:
        message = pb.Configuration.FromString(body)
    except DecodeError:
        return None
    voters, learners = tuple(message.voters), tuple(message.learners)
    is_sane = voters and min((*voters, *learners)) > 0
    is_ordered = list(voters) == sorted(set(voters)) and list(learners) == sorted(set(learners))
    if not (is_sane and is_ordered and not set(voters) & set(learners)):
        return None
    return Configuration(voters, learners)


class LogConfigurations:
    """The configurations of one log. The loop's thread only."""

    def __init__(self, ledger: Ledger, node_file: NodeFile) -> None:
        self._ledger: Final = ledger
        self._node_file: Final = node_file
        self._known: list[ConfigurationAt] = []
        """Oldest first. Several may lie below the beginning, as files are deleted."""

    @property
    def all(self) -> list[ConfigurationAt]:
        """Configurations, oldest first: that of the beginning if it is known, then one per
        entry."""
        first_index = self._ledger.first_index
        below = [at for at in self._known if at.index < first_index]
        return below[-1:] + self._known[len(below) :]

    def load(self) -> None:
        """Read the entries at the noted indexes. Raises CorruptionError."""
        ledger, record = self._ledger, self._node_file.record
        bases = record.former_base_configuration, record.base_configuration
        by_index = {at.index: at for at in bases if at is not None}
        for index in record.configuration_indexes:
            if not ledger.first_index <= index <= ledger.last_index:
                continue
            entry = ledger.entry(index)
            if entry.kind == KIND_CONFIGURATION:  # Otherwise another entry has taken its place.
                configuration = decode_configuration(entry.body)
                if configuration is None:
                    expected, body = "a configuration", f"of entry {index}"
                    raise CorruptionError(ledger.directory, 0, "body", expected, body)
                by_index[index] = ConfigurationAt(index, configuration)
        self._known = [by_index[index] for index in sorted(by_index)]

    def note(self, indexes: Iterable[Index]) -> None:
        """Note indexes that may hold a configuration soon. Durable on return; errors as
        NodeFile.save.

        A noted index is not written again, so the append of an entry noted in time cannot fail
        here."""
        record, ledger = self._node_file.record, self._ledger
        new = set(indexes).difference(record.configuration_indexes)
        if new:
            # Indexes whose entries are not there (any more) are dropped from the others.
            first, last = ledger.first_index, ledger.last_index
            kept = [index for index in record.configuration_indexes if first <= index <= last]
            noted = tuple(sorted({*kept, *new}))
            self._node_file.save(replace(record, configuration_indexes=noted))

    def add(self, new: list[ConfigurationAt]) -> None:
        """Add configurations whose entries are about to be written. Their indexes are noted on
        return; errors as `note`."""
        hit("log_configurations.before_note")
        self.note(at.index for at in new)
        self._known += new
        hit("log_configurations.noted")

    def cut(self, lo: Index) -> None:
        """Forget the configurations from `lo` on: their entries were truncated."""
        self._known = [at for at in self._known if at.index < lo]

    def keep_base(self, base_index: Index) -> None:
        """Keep the configuration in force at `base_index`: entries up to there are about to be
        deleted.

        If they stay after all, nothing changes. Durable on return; errors as NodeFile.save."""
        record, configurations = self._node_file.record, self.all
        below = [at for at in configurations if at.index <= base_index]
        if below and below[-1] != record.base_configuration:
            is_known = configurations[0].index < self._ledger.first_index
            former = configurations[0] if is_known else None
            self._node_file.save(
                replace(record, base_configuration=below[-1], former_base_configuration=former)
            )
            self._known = configurations
