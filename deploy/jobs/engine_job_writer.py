"""The process that the job of the engine kills: it writes the lines that are not in the store yet.

Owns the loop over files; prints one JSON line for each batch that is durable, which is the promise
that its parent checks after the kill. Resumes automatically: a queue's order is fixed, so its next
offset is the count of its lines that are stored.
"""

import json
import sys
import time

from deploy.jobs.stdlib_source import QueueName, encoded_lines, find_files
from store.config import MIB, StoreConfig
from store.store import Store

STORE_CONFIG = StoreConfig(
    container="ledger",
    file_size_bytes=64 * MIB,
    ledger_index_units_per_file=64 * 1024,
    index_slot_count=50_000,
    index_entry_count=200_000,
)
_BATCH_COUNT = 200


def write_rest(directory: str, source: str) -> None:
    """Write the missing lines, batch by batch, and report each batch once it is durable."""
    began = time.monotonic()
    with Store.open(directory, STORE_CONFIG) as store:
        next_offsets = {(q.topic, q.queue_id): q.max_offset for q in store.queues()}
        say(
            {
                "opened": {
                    "lines": sum(next_offsets.values()),
                    "recovery_ms": round((time.monotonic() - began) * 1000, 1),
                    "cut_size_bytes": store.recovery.cut_size_bytes,
                    "queues": {f"{t}/{q}": offset for (t, q), offset in next_offsets.items()},
                }
            }
        )
        to_skip = dict(next_offsets)
        for file in find_files(source):
            queue: QueueName = (file.topic, file.queue_id)
            records = list(encoded_lines(file, int(time.time() * 1000)))
            skipped = min(len(records), to_skip.get(queue, 0))
            to_skip[queue] = to_skip.get(queue, 0) - skipped
            for lo in range(skipped, len(records), _BATCH_COUNT):
                part = records[lo : lo + _BATCH_COUNT]
                result = store.put(b"".join(part))
                say({"acked": [*queue, result.queue_offsets[-1] + 1, len(part)]})


def say(event: dict[str, object]) -> None:
    """Print one event for the parent."""
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    write_rest(sys.argv[1], sys.argv[2])
