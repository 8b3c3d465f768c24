"""A program that writes into a store until somebody kills it, and says on a pipe what it did.

Run as `python -m tests.store.crash_writer <directory> <options as JSON>`. Each line on standard
output is one write, so a SIGKILL never leaves half a line that matters:

    O <end>                                the store is open
    T <batch>                              the batch will be tried now
    P <batch> <end> <positions> <offsets>  the batch is in the log, and nothing is promised
    A <batch> <end> <positions> <offsets>  the batch is acknowledged
    C <position>                           everything before it is in the page cache at least
    Z                                      closed
    N <failpoint> <passes>                 at the end, with `census`
    E <error>                              the writer gives up
"""

import json
import os
import sys
import threading
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from random import Random
from typing import Literal

from store.config import StoreConfig
from store.files import failpoints
from store.log.record_log import AppendResult
from store.store import Store
from tests.store.crash_check import (
    FILE,
    RETAINED_FILE_COUNT,
    WRITER_COUNT,
    crash_config,
    encode,
    plan,
    records_of,
)

Mode = Literal["sync", "async", "pool"]


@dataclass(frozen=True)
class Options:
    """What the parent asks for."""

    container: Literal["commit_log", "ledger"]
    mode: Mode
    seed: int
    first_number: int
    batch_count: int
    census: bool = False
    plant: Literal["", "early_ack", "early_commit"] = ""
    """A fault that the parent must find: the batch is acknowledged before it is appended, or a
    write buffer counts as committed."""

    def to_json(self) -> str:
        """For the command line."""
        return json.dumps(asdict(self))


def writer_config(options: Options) -> StoreConfig:
    """The settings of the writer; those of the layout depend on the container only."""
    random = Random(options.seed)
    return crash_config(
        container=options.container,
        flush="sync" if options.mode == "sync" else "async",
        transient_pool=options.mode == "pool",
        transient_pool_size=2,
        commit_interval_ms=1,
        commit_least_pages=random.choice([0, 2]),
        flush_interval_ms=random.choice([1, 20]),
        flush_least_pages=random.choice([0, 4]),
        durable_mark_interval_ms=random.choice([0, 1, 1000]),
        derived_flush_interval_ms=random.choice([1, 5]),
        retention_interval_ms=0,
        retention_size_bytes=RETAINED_FILE_COUNT * FILE,
        preallocate_file_count=random.choice([0, 2]),
        warm_up=random.random() < 0.5,
    )


def say(line: str) -> None:
    """Write one line at once; the parent reads what came before a kill."""
    os.write(1, f"{line}\n".encode())


class WriterThread:
    """One writing thread. Its batches have every second number."""

    def __init__(self, store: Store, options: Options, number: int) -> None:
        self._store, self._mode, self._plant = store, options.mode, options.plant
        self._random = Random(options.seed * WRITER_COUNT + number)
        first = options.first_number + number
        self._numbers = range(first, first + options.batch_count, WRITER_COUNT)

    def run(self) -> None:
        try:
            self._write()
        except BaseException as error:  # noqa: BLE001  The parent must hear of it.
            say(f"E {type(error).__name__}: {error}")
            os._exit(3)

    def _write(self) -> None:
        store = self._store
        waiting: list[tuple[int, AppendResult]] = []
        for number in self._numbers:
            say(f"T {number}")
            if self._plant == "early_ack":
                report("A", number, predict(store, number))
            if self._mode == "sync" and self._random.random() < 0.5:
                report("A", number, store.put(encode(number)))
                continue
            waiting.append((number, store.append(encode(number))))
            report("P", *waiting[-1])
            if self._mode == "sync" and len(waiting) < 4:
                continue
            if self._mode == "sync" or self._random.random() < 0.05:
                store.wait_durable(waiting[-1][1].end_position)
            if self._mode == "pool":
                files = store.log.files
                is_late = self._plant == "early_commit"
                committed = files.wrote_position if is_late else files.max_position
            for done, result in waiting:
                report("A", done, result)
            if self._mode == "pool":
                say(f"C {committed}")
            waiting = []


def report(what: str, number: int, result: AppendResult) -> None:
    """Say where a batch is."""
    positions = ",".join(map(str, result.record_positions))
    offsets = ",".join(map(str, result.queue_offsets))
    say(f"{what} {number} {result.end_position} {positions} {offsets}")


def predict(store: Store, number: int) -> AppendResult:
    """Where the only writer's next batch will land in a plain log."""
    files, size_bytes = store.log.files.files, len(encode(number))
    position = files[-1].wrote_position if files else 0
    if files and size_bytes + 8 > files[-1].free_bytes:
        position = files[-1].end_position
    positions, offsets = [], []
    next_offsets = dict(store.log.stamper.next_offsets)
    at = position
    for planned, record in zip(plan(number), records_of(number), strict=True):
        key = planned.topic.encode(), planned.queue_id
        positions.append(at)
        offsets.append(next_offsets.get(key, 0))
        next_offsets[key] = offsets[-1] + 1
        at += len(record)
    return AppendResult(position, position + size_bytes, -1, positions, offsets, 0)


def write(root: str, options: Options) -> None:
    """Open, write with two threads, close."""
    with Store.open(root, writer_config(options)) as store:
        say(f"O {store.log.max_position}")
        writer_count = 1 if options.plant else WRITER_COUNT
        writers = [WriterThread(store, options, number) for number in range(writer_count)]
        threads = [threading.Thread(target=writer.run) for writer in writers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    say("Z")


def main() -> None:
    """Do what the command line says."""
    options = Options(**json.loads(sys.argv[2]))
    with ExitStack() as stack:
        counts = stack.enter_context(failpoints.census()) if options.census else {}
        write(sys.argv[1], options)
        for name, passes in sorted(counts.items()):
            say(f"N {name} {passes}")


if __name__ == "__main__":
    main()
