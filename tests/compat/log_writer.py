"""A program that appends to a plain log until it is killed, and says what is durable.

Run as `python -m tests.compat.log_writer DIRECTORY`. Prints "acked QUEUE OFFSET BODY" for each
message once it is synced; the lines of a batch are one write.
"""

import itertools
import os
import sys
from typing import Final

from store.config import KIB, StoreConfig
from store.record.message import encode_message
from store.store import Store

TOPIC: Final = "Compat"
QUEUE_COUNT: Final = 4
CONFIG: Final = StoreConfig(
    file_size_bytes=64 * KIB,
    batch_size_bytes_max=16 * KIB,
    body_size_bytes_max=16 * KIB,
    consume_queue_units_per_file=200,
    index_slot_count=1_000,
    index_entry_count=4_000,
    retention_interval_ms=0,
)
"""Files so small that a kill often meets a roll, and files made ahead."""
_BATCH_COUNT: Final = 5


def write(directory: str) -> None:
    """Append batches, a queue after the other, for ever."""
    with Store.open(directory, CONFIG) as store:
        for number in itertools.count():
            queue_id = number % QUEUE_COUNT
            bodies = [
                f"ours-{number}-{n}-".ljust(100 + number % 400, "x") for n in range(_BATCH_COUNT)
            ]
            batch = b"".join(
                encode_message(TOPIC, queue_id, body.encode(), {"KEYS": f"k{number}"})
                for body in bodies
            )
            result = store.put(batch)
            lines = [
                f"acked {queue_id} {offset} {body}\n"
                for offset, body in zip(result.queue_offsets, bodies, strict=True)
            ]
            os.write(1, "".join(lines).encode())


if __name__ == "__main__":
    write(sys.argv[1])
