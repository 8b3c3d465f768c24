"""One life of a store in which one file-system call, or one step, fails.

A life opens a directory, fills several files, reads, syncs, deletes, closes and reopens. Whatever
happens then is either an error by name or nothing at all, and the directory keeps every promise.

    python -m tests.store.fault_life commit_log inline '["fs.sync=EIO@3"]'

lives once for each fault, and prints for each how often a put succeeded after an error, and the
names of all errors.
"""

import contextlib
import json
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from store.config import StoreConfig
from store.errors import (
    FileSystemError,
    Outcome,
    StoreError,
    StoreFullError,
    SyncFailedError,
)
from store.files import failpoints
from store.files.spare_descriptors import SPARE
from store.store import Store
from tests.store.crash_check import (
    FILE,
    BrokenPromiseError,
    History,
    Place,
    check_derived,
    check_store,
    crash_config,
    encode,
    identify,
    open_store,
    temporary_parent,
)
from tests.store.records import messages

Container = Literal["commit_log", "ledger"]
Variant = Literal["inline", "threads", "pool"]

DEADLINE_MS = 30_000
# Between a roll and its entry nothing can fail, and the ledger relies on that: a failure there ends
# the process. The point is for kills.
INFALLIBLE = "ledger.before_append"


def fault_config(container: Container, variant: Variant) -> StoreConfig:
    """Nothing happens by a timer, so that the n-th pass is the same one each time.

    With threads it is not: there a case hits something else each time.
    """
    return crash_config(
        container=container,
        flush="async" if variant == "pool" else "sync",
        transient_pool=variant == "pool",
        transient_pool_size=2,
        flush_interval_ms=1 if variant == "pool" else 1_000_000,
        commit_interval_ms=1 if variant == "pool" else 1_000_000,
        commit_least_pages=0,
        flush_timeout_ms=DEADLINE_MS,
        durable_mark_interval_ms=0,
        derived_flush_interval_ms=1,
        retention_size_bytes=3 * FILE,
        retention_interval_ms=0,
        preallocate_file_count=0 if variant == "inline" else 2,
        warm_up=variant != "inline",
    )


@dataclass
class Life:
    """One life, in which something may fail; it goes on after errors that are not final."""

    root: str
    config: StoreConfig
    variant: Variant
    history: History
    fault: str = ""
    store: Store | None = None
    fatal: list[BaseException] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)
    waiting: dict[int, tuple[list[int], list[int]]] = field(default_factory=dict)
    doubtful: dict[int, int] = field(default_factory=dict)
    """Batches whose put failed with an unknown outcome, and from where on they may be."""
    number: int = 0
    put_after_error_count: int = 0

    def live(self) -> None:
        for _ in range(2):
            self.open()
            self.attempt(self.settle)
            self.doubtful.clear()
            for _ in range(3):
                for _ in range(9):
                    self.put()
                self.attempt(lambda store: store.queues())
                self.attempt(lambda store: store.messages_by_key("orders", "k1-0"))
                self.attempt(lambda store: store.maintain())
                self.wait_durable()
            self.attempt(lambda store: store.delete_expired())
            self.put()
            self.close()

    def open(self) -> None:
        """Open, again if need be: what failed once does not fail twice."""
        for _ in range(3):
            try:
                self.store = Store.open(
                    self.root,
                    self.config,
                    maintain=self.variant != "inline",
                    on_fatal=self.fatal.append,
                )
                return
            except (StoreError, OSError) as error:
                self.note(error)
        raise BrokenPromiseError(f"three openings failed: {self.errors}")

    def attempt(self, call: Callable[[Store], object]) -> bool:
        """Do one thing unless the process would be gone; return whether it worked."""
        if self.store is None or self.fatal:
            return False
        try:
            call(self.store)
        except (StoreError, OSError) as error:
            self.note(error)
            if isinstance(error, SyncFailedError) and not self.fatal:
                raise BrokenPromiseError("a failed sync was not fatal") from error
            return False
        except BrokenPromiseError:
            raise
        except AssertionError:
            if not (self.fault.startswith(INFALLIBLE) and self.fatal):
                raise
            return False
        return True

    def note(self, error: StoreError | OSError) -> None:
        """Only errors by name may come out; a failing step that is no call fails as it is told."""
        is_step = "failpoint" in str(error) and "failpoint fs." not in str(error)
        if isinstance(error, OSError) and not is_step:
            raise BrokenPromiseError(f"a bare error came out: {error!r}") from error
        self.errors.append(error)

    def put(self) -> None:
        number, self.number = self.number, self.number + 1
        self.history.attempted.add(number)
        error_count = len(self.errors)
        lo = self.store.log.files.wrote_position if self.store else 0

        def put(store: Store) -> None:
            result = store.put(encode(number))
            where = result.record_positions, result.queue_offsets
            if self.variant == "pool":
                self.waiting[number] = where
            else:
                self.history.acknowledge(number, *where)

        if self.attempt(put):
            self.put_after_error_count += error_count > 0
            if self.fatal and self.variant == "inline":
                raise BrokenPromiseError(f"an acknowledgement after {self.fatal}")
        elif len(self.errors) > error_count:
            error = self.errors[-1]
            if isinstance(error, StoreError) and error.outcome is Outcome.NOT_APPLIED:
                self.history.attempted.discard(number)
            else:
                self.doubtful[number] = lo
                self.attempt(self.settle)

    def settle(self, store: Store) -> None:
        """Find out which batches of unknown outcome are there; retention would hide it later."""
        lo = min(self.doubtful.values(), default=store.log.max_position)
        for _, data in store.log.record_runs(lo, store.log.max_position):
            for message in messages(data):
                number, i = identify(message)
                if number in self.doubtful:
                    place = Place(message.position, message.queue_offset)
                    self.history.must[number, i] = place

    def wait_durable(self) -> None:
        waiting = dict(self.waiting)
        if self.attempt(lambda store: store.wait_durable(store.log.files.wrote_position)):
            self.all_there(waiting)
            self.attempt(self.settle)

    def all_there(self, waiting: dict[int, tuple[list[int], list[int]]]) -> None:
        for number, where in waiting.items():
            self.history.acknowledge(number, *where)
            self.waiting.pop(number, None)

    def close(self) -> None:
        store, self.store = self.store, None
        assert store is not None
        was_fatal = bool(self.fatal)
        try:
            store.close()
            if was_fatal:
                raise BrokenPromiseError(f"a clean close after {self.fatal}")
            self.all_there(dict(self.waiting))
        except (StoreError, OSError) as error:
            self.note(error)
        # What was in a write buffer may have been committed, or not.
        self.doubtful.update({n: positions[0] for n, (positions, _) in self.waiting.items()})
        self.waiting.clear()
        self.check_fatal()

    def abandon(self) -> None:
        """End the threads of a store that broke a promise."""
        if self.store is not None:
            with contextlib.suppress(StoreError, OSError):
                self.store.close()

    def check_fatal(self) -> None:
        """The owner is told once, and of a sync or of what the failing step raised."""
        if len(self.fatal) > 1:
            raise BrokenPromiseError(f"told {len(self.fatal)} times: {self.fatal}")
        for cause in self.fatal:
            is_step = isinstance(cause, OSError) and "failpoint fs." not in str(cause)
            is_step |= self.fault.startswith(INFALLIBLE) and isinstance(cause, AssertionError)
            # A mark would fall behind what was promised, a write buffer what was acknowledged.
            is_write = isinstance(cause, FileSystemError | StoreFullError) and (
                self.variant == "pool" or os.path.basename(cause.path) == "marks"
            )
            if not (isinstance(cause, SyncFailedError) or is_step or is_write):
                raise BrokenPromiseError(f"the process ends because of {cause!r}") from cause
        self.fatal.clear()


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def run_case(root: Path, container: Container, variant: Variant, fault: str) -> Life:
    """Live with one fault; check the directory and what is left in the process."""
    config = fault_config(container, variant)
    life = Life(str(root), config, variant, History(container == "ledger"), fault)
    life.history.kept_size_bytes_min = FILE
    SPARE.fill()  # Else they are opened with the first directory that is synced.
    before = open_descriptors(), set(threading.enumerate())
    failpoints.arm(fault)
    try:
        life.live()
    except BaseException:
        life.abandon()
        raise
    finally:
        failpoints.disarm_all()
    with open_store(str(root), config) as store:
        check_store(store, life.history)
        check_derived(store, f"{root}-rebuilt")
    after = open_descriptors(), set(threading.enumerate())
    if after != before:
        raise BrokenPromiseError(f"left open: {before} became {after}")
    return life


def census(root: Path, container: Container, variant: Variant) -> dict[str, int]:
    """Count the passes of a whole life that goes well."""
    life = Life(
        str(root), fault_config(container, variant), variant, History(container == "ledger")
    )
    with failpoints.census() as counts:
        life.live()
    assert not life.errors, f"a life without faults had {life.errors}"
    assert life.history.must, "nothing was acknowledged"
    return counts


def main(container: Container, variant: Variant, faults: list[str]) -> list[tuple[int, list[str]]]:
    """Live once with each fault."""
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="quorumlog-fault-", dir=temporary_parent()) as parent:
        for fault in faults:
            root = Path(parent) / "store"
            try:
                life = run_case(root, container, variant, fault)
            except BaseException as error:
                error.add_note(f"with {fault}, {container}, {variant}")
                raise
            shutil.rmtree(root)
            shutil.rmtree(f"{root}-rebuilt", ignore_errors=True)
            names = [type(error).__name__ for error in life.errors]
            outcomes.append((life.put_after_error_count, names))
    return outcomes


if __name__ == "__main__":
    given = json.loads(sys.argv[3])
    print(json.dumps(main(sys.argv[1], sys.argv[2], given)))  # type: ignore[arg-type]
