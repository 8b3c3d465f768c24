"""The sizes of the formats as the store and the node define them, for a plan.

Owns the way from their constants to `FormatSizes`. Loads server code, so it is imported by commands
when they run.
"""

from node.config.settings import Settings
from node.state.command_records import CommandEncoder
from planning.capacity.formats import FormatSizes
from raft.config import RaftConfig
from store import format as fmt
from store.config import StoreConfig
from store.derived.keys.key_sums import ENTRIES_PER_BLOCK
from store.derived.queues.unit_sums import BLOCK_UNITS
from store.derived.sum_files import SUM_SIZE_BYTES
from store.format import LOOPBACK

_PRODUCER_ID_MAX = 2**64 - 1
_SEQUENCE_MAX = 2**32
_NODE_ID = 1


def format_sizes(file_size_bytes: int | None = None) -> FormatSizes:
    """Return the sizes for nodes with default settings, or with log files of another size."""
    # Constructed, not read: settings in this machine's environment are not the defaults.
    settings = Settings.model_construct(node_id=_NODE_ID)
    if file_size_bytes is not None:
        settings = settings.model_copy(update={"file_size_bytes": file_size_bytes})
    return sizes_of(settings.store_config())


def sizes_of(config: StoreConfig) -> FormatSizes:
    """Return the sizes for a store with these settings, IPv4 hosts and idempotent producers."""
    command = CommandEncoder(LOOPBACK).encode_producer_batch(
        _PRODUCER_ID_MAX, _SEQUENCE_MAX, fmt.ENTRY_SIZE_BYTES_MAX
    )
    return FormatSizes(
        record_size_bytes_min=fmt.RECORD_SIZE_BYTES_MIN,
        entry_header_size_bytes=fmt.ENTRY_HEADER_SIZE_BYTES,
        command_record_size_bytes=len(command),
        queue_unit_size_bytes=fmt.CONSUME_QUEUE_UNIT_SIZE_BYTES,
        index_unit_size_bytes=fmt.INDEX_UNIT_SIZE_BYTES,
        key_entry_size_bytes=fmt.INDEX_ENTRY_SIZE_BYTES,
        key_slot_size_bytes=fmt.INDEX_SLOT_SIZE_BYTES,
        key_slot_count=config.index_slot_count,
        key_entry_count=config.index_entry_count,
        checksum_size_bytes=SUM_SIZE_BYTES,
        units_per_checksum=min(BLOCK_UNITS, ENTRIES_PER_BLOCK),
        file_size_bytes=config.file_size_bytes,
        prepared_file_count=config.preallocate_file_count,
        batch_size_bytes_max=config.batch_size_bytes_max,
        disk_warn_ratio=config.disk_warn_ratio,
        window_size_bytes=RaftConfig(group="plan", node_id=_NODE_ID).window_size_bytes_max,
    )
