"""Every store error: stable code, a text with numbers and advice, and a round trip by pickle."""

import pickle

import pytest

from store import errors
from store.errors import Outcome, StoreError
from store.fsck.types import LossRefusedError, StalePlanError

EXAMPLES: list[StoreError] = [
    errors.RecordFormatError(12, "magic", "DAA320A7", "00000000"),
    errors.LimitExceededError("message body", 5_000_000, 4_194_304),
    errors.TopicNameError("a b", "character ' ' is not allowed"),
    errors.StoreFullError("store/commitlog/0", 1 << 30, 512),
    errors.FileSystemError("open", "store/lock", 13),
    errors.SyncFailedError("store/commitlog/0", 5),
    errors.FlushTimeoutError(100, 50, 5000),
    errors.BusyError("put lock", 1000),
    errors.ClosedError("store"),
    errors.LockedError("store/lock", "process 7"),
    errors.LayoutError("store/commitlog/0", "16384 bytes", "5 bytes"),
    errors.TailNotCutError("store/commitlog", 1024, 77),
    errors.CorruptionError("store/commitlog/0", 8, "body CRC", "00000001", "00000002"),
    errors.ForeignEntryError(7, 36, "chain CRC", "00000001", "00000002"),
    errors.SnapshotNeededError("store/dledger-n0/start.0", "the header is torn"),
    errors.DamageWiderError(7, 9, 4096),
    errors.PositionRangeError("position", 9, 0, 8),
    errors.NoBeginningError("an entry", 60, 0, 292),
    errors.QueueOrderError("orders", 3, 10, 12),
    errors.InnerBatchError("batches", 0, 17),
    errors.DerivedFileError("store/consumequeue/orders/3/0", 20, "unit", "size 9", "size 8"),
    errors.DerivedDamageError("store/consumequeue/orders/3/0", 20, "units of 0 to 9", (0, 10)),
    LossRefusedError(10, 30, 2),
    StalePlanError("store/commitlog/0", 7),
]


def every_class() -> set[type[StoreError]]:
    classes, todo = set(), [StoreError]
    while todo:
        classes.update(more := todo.pop().__subclasses__())
        todo.extend(more)
    return {c for c in classes if c.__module__.startswith("store.")}


def test_every_class_has_an_example_and_its_own_code() -> None:
    classes = every_class()
    assert {type(e) for e in EXAMPLES} == classes
    assert len({c.code for c in classes}) == len(classes)
    assert all(c.code.startswith("store.") for c in classes)


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda e: type(e).__name__)
def test_an_error_survives_pickling_and_says_what_to_do(error: StoreError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)
    assert ";" in str(error), "what happened; what to do"
    assert isinstance(error.outcome, Outcome)
