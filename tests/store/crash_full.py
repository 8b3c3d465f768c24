"""A program that writes into a store until its disk is full, and on when there is room again.

Run as `python -m tests.store.crash_full <directory> <container> <squeeze>`, in a process of its
own because a store that writes into a hole would die of SIGBUS. `squeeze` says what runs out:

    brim     the file system, filled to the last byte by another file; nothing warns the store
    marks    the same, with the store's own watermarks and reserve
    limit    RLIMIT_FSIZE, below the size of a log file
    growth   the file system, below the size of a first file that grows in steps

Prints one JSON object at the end. Every promise is checked on the way; a broken one is a traceback.
"""

import json
import os
import resource
import sys
from collections.abc import Callable

from store.config import StoreConfig
from store.errors import StoreFullError
from store.files import mapped_file
from store.store import Store
from tests.store.crash_check import (
    FILE,
    History,
    check_derived,
    check_store,
    crash_config,
    encode,
    open_store,
)

ROUND_COUNT = 3
BATCHES_AFTER = 40
BATCH_COUNT_MAX = 5_000


class Squeeze:
    """Takes the room away and gives it back."""

    def __init__(self, root: str, kind: str) -> None:
        self._kind, self._ballast = kind, os.path.join(os.path.dirname(root), "ballast")

    def take(self) -> None:
        """From now on no file can grow; with `marks` two could."""
        if self._kind == "limit":
            resource.setrlimit(resource.RLIMIT_FSIZE, (FILE - 1, resource.RLIM_INFINITY))
            return
        fd = os.open(self._ballast, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        size_bytes = 65536
        if self._kind == "marks":
            size_bytes = 0
            while free_bytes(self._ballast) > 2 * FILE:
                os.write(fd, bytes(4096))
        while size_bytes:  # To the last byte.
            try:
                os.write(fd, bytes(size_bytes))
            except OSError:
                size_bytes //= 2
        os.close(fd)

    def give(self) -> None:
        """There is room again."""
        if self._kind == "limit":
            resource.setrlimit(
                resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
            )
        elif os.path.exists(self._ballast):
            os.unlink(self._ballast)


def free_bytes(path: str) -> int:
    """What is free on the disk that holds the directory of `path`."""
    stat = os.statvfs(os.path.dirname(path))
    return stat.f_bavail * stat.f_frsize


def make_config(container: str, kind: str) -> StoreConfig:
    """With `marks` the store is to notice by itself, before the brim."""
    changes: dict[str, object] = {"disk_reserve_bytes": 0}
    if kind == "marks":
        changes = {
            "disk_reserve_bytes": 4 * FILE,
            "retention_interval_ms": 0,
            "delete_when_full": True,
        }
    elif kind == "growth":
        mapped_file.FIRST_SIZE_BYTES = mapped_file._ALLOCATE_SIZE_BYTES = FILE  # type: ignore[misc]
        changes |= {"file_size_bytes": 8 << 20, "ledger_index_units_per_file": 1 << 15}
    file_count = 1 if kind in ("limit", "growth") else 0
    return crash_config(container=container, preallocate_file_count=file_count, **changes)


class Filler:
    """Puts batches until the store refuses them."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.number = 0
        self.refused_count = self.stored_while_full_count = 0

    def put(self, store: Store) -> bool:
        """Put a batch; return whether it was taken. Only a full disk may refuse it."""
        number, self.number = self.number, self.number + 1
        try:
            result = store.put(encode(number))
        except StoreFullError:
            self.refused_count += 1
            return False
        self.history.attempted.add(number)
        self.history.acknowledge(number, result.record_positions, result.queue_offsets)
        return True

    def put_until_refused(self, store: Store) -> None:
        for _ in range(BATCH_COUNT_MAX):
            maintain(store)
            if not self.put(store):
                return
        raise AssertionError(f"{BATCH_COUNT_MAX} batches fitted")


def maintain(store: Store) -> None:
    """What the maintenance thread does; it counts a full disk and goes on."""
    refuses(store.maintain)


def refuses(call: Callable[[], object]) -> bool:
    """Whether a call is refused because the disk is full."""
    try:
        call()
    except StoreFullError:
        return True
    return False


def main() -> None:
    """Fill, read, make room, go on; several times, then reopen."""
    root, container, kind = sys.argv[1:]
    config, squeeze = make_config(container, kind), Squeeze(root, kind)
    filler = Filler(History(container == "ledger"))
    filler.history.kept_size_bytes_min = 0 if kind == "marks" else 3 * FILE
    free_bytes_min = 1 << 62
    with open_store(root, config) as store:
        for _ in range(ROUND_COUNT):
            for _ in range(10):
                assert filler.put(store), "there is room"
            maintain(store)
            squeeze.take()
            if kind == "marks":  # It deletes what it may, all but the last file, and then refuses.
                while len(store.log.files.files) > 1:
                    maintain(store)
                    squeeze.take()
            filler.put_until_refused(store)
            free_bytes_min = min(free_bytes_min, free_bytes(root))
            for _ in range(BATCHES_AFTER):  # Small ones may still fit, big ones may not.
                maintain(store)
                filler.stored_while_full_count += filler.put(store)
                check_reads(store, filler.history)
            squeeze.give()
            maintain(store)
            assert filler.put(store), "there is room again"
            check_store(store, filler.history)
        check_derived(store, f"{root}-rebuilt")
        squeeze.take()
        filler.put_until_refused(store)
        # What is in the log is in the queues or refused; a close needs no room that is not there.
        refused_close = refuses(store.close)
        squeeze.give()
    with open_store(root, config) as store:
        record_count = check_store(store, filler.history)
        check_derived(store, f"{root}-rebuilt")
        assert filler.put(store), "a reopened store goes on"
    counts = {
        "records": record_count,
        "refused": filler.refused_count,
        "stored_while_full": filler.stored_while_full_count,
        "refused_close": refused_close,
        "free_bytes_min": free_bytes_min,
    }
    print(json.dumps(counts))


def check_reads(store: Store, history: History) -> None:
    """Read the newest and the oldest records by position while nothing can be written."""
    ids = [i for i, place in history.must.items() if place.position >= store.log.min_position]
    for record_id in (ids[0], ids[-1]):
        message = store.message_at(history.must[record_id].position)
        assert message.queue_offset == history.must[record_id].queue_offset, f"{record_id}"
    assert store.queues()


if __name__ == "__main__":
    main()
