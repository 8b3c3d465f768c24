"""Every error of the node: stable code, numbers and advice, pickling, and what clients are told."""

import pickle
from types import SimpleNamespace
from typing import Any, cast

import pytest

from node.errors import common as errors
from node.errors import groups as group_errors
from node.errors import pop as pop_errors
from node.errors import transactions as transaction_errors
from node.errors.common import NodeError
from node.errors.reference import error_classes, page
from node.errors.translation import describe, to_pb
from node.replication.ha.core.types import HaError
from quorumlog.cluster.calls import Calls
from quorumlog.cluster.retry import Deadline
from quorumlog.errors import QuorumlogError, from_pb
from quorumlog.pb import common_pb2
from raft import errors as raft_errors
from store import errors as store_errors
from store.errors import Outcome
from tests.patience import PATIENCE_S
from tests.tidy import repository

EXAMPLES: list[NodeError] = [
    errors.NotLeaderError(2, "127.0.0.1:8082"),
    errors.NotReadyError(7),
    errors.TransferringError(3),
    errors.DrainingError(),
    errors.ShuttingDownError(),
    errors.WrongClusterError("a", "b"),
    errors.BusyError("appends in flight", 10, 10),
    errors.LimitReachedError("topics", 10_001, 10_000),
    errors.AppendTimeoutError(500),
    errors.BatchUndecidedError(7, 3, 64),
    errors.OutcomeUnknownError(9, 2),
    errors.NotAppliedError(9, 2),
    errors.ReadFailedError(1),
    errors.ReadTimeoutError("entry 9 was not applied", 100),
    errors.OutOfSequenceError(0xABC, 4, 6),
    errors.UnknownProducerError(0xABC, 4),
    errors.DuplicateExpiredError(0xABC, 1, 40),
    errors.SequenceReusedError(0xABC, 1, 2, 3),
    errors.UnknownTopicError("orders"),
    errors.TopicExistsError("orders", 4),
    errors.ReservedTopicError("rmq_sys_x"),
    errors.TopicNotWritableError("orders", 4),
    errors.TopicNotReadableError("orders", 2),
    errors.UnknownQueueError("orders", 9, 4),
    errors.UnknownGroupError("readers"),
    errors.GroupNotEmptyError("readers", "a@1"),
    errors.MessageNotFoundError("00"),
    group_errors.GroupDisabledError("g", "consuming"),
    group_errors.TopicForbiddenError("g", "t"),
    group_errors.GroupOrderlyError("g"),
    group_errors.GroupKindError("g", "by queue", "c", "by pop"),
    group_errors.ClientIdInUseError("c", "g", 9_000),
    group_errors.MessageExpiredError("t", 0, 9, 1, 5),
    group_errors.AlreadyResentError("g", 3),
    group_errors.BadFilterError("it ends too early", 4),
    transaction_errors.UnknownTransactionError(7),
    transaction_errors.TransactionTooLargeError(5, 3),
    transaction_errors.TransactionEndedError(7, "given up"),
    transaction_errors.OffsetConflictError("g", "orders", 3, -1, 5),
    pop_errors.StaleHandleError("AQ", "its message was handed out again"),
    pop_errors.PopConflictError("readers", "orders", 3),
    pop_errors.QueueHeldError("orders", 3, "data/0 byte 7: body CRC is 1, expected 2"),
    errors.WrongModeError("HaStatus", "raft"),
    errors.UnknownCommandError(4096),
    errors.StateDivergedError("topics behind log position 7"),
    errors.BadRequestError("queue_id", "0 or more", "-1"),
]


def test_every_class_has_an_example_its_own_code_and_a_docstring() -> None:
    parts = ("common", "groups", "pop", "transactions")
    modules = {f"node.errors.{part}" for part in parts}
    classes = {c for c in NodeError.__subclasses__() if c.__module__ in modules}
    assert {type(e) for e in EXAMPLES} == classes
    assert len({c.code for c in classes}) == len(classes)
    assert all(c.code.startswith("node.") and c.__doc__ for c in classes)


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda e: type(e).__name__)
def test_an_error_survives_pickling_and_says_what_to_do(error: NodeError) -> None:
    error.with_leader(3, "127.0.0.1:8083")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)
    assert describe(again) == describe(error)
    assert ";" in str(error), "what happened; what to do"


def test_the_message_says_all_that_the_error_knows() -> None:
    error_pb = to_pb(errors.NotLeaderError(2, "127.0.0.1:8082"))
    assert error_pb == common_pb2.Error(
        code="node.not_leader",
        message="this node does not lead, node 2 leads at 127.0.0.1:8082; ask there",
        retryable=True,
        outcome=common_pb2.OUTCOME_NOT_APPLIED,
        leader_id=2,
        leader_address="127.0.0.1:8082",
    )
    assert to_pb(errors.AppendTimeoutError(5)).outcome == common_pb2.OUTCOME_UNKNOWN
    assert to_pb(errors.DuplicateExpiredError(1, 2, 3)).outcome == common_pb2.OUTCOME_APPLIED
    assert to_pb(errors.NotLeaderError()).retry_after_ms > 0, "nobody leads: do not hurry"


@pytest.mark.parametrize(
    ("error", "code", "status"),
    [
        (raft_errors.NotLeaderError(2), "node.not_leader", "UNAVAILABLE"),
        (raft_errors.TransferringError(2), "node.transferring", "UNAVAILABLE"),
        (raft_errors.BusyError("reads", 4, 4), "node.busy", "RESOURCE_EXHAUSTED"),
        (
            raft_errors.TransferRefusedError(2, "behind"),
            "raft.transfer_refused",
            "FAILED_PRECONDITION",
        ),
        (store_errors.StoreFullError("log", 9, 1), "store.full", "RESOURCE_EXHAUSTED"),
        (
            store_errors.RecordFormatError(0, "magic", "a", "b"),
            "store.record_format",
            "INVALID_ARGUMENT",
        ),
        (store_errors.CorruptionError("log", 0, "CRC", "a", "b"), "store.corruption", "DATA_LOSS"),
        (ZeroDivisionError("x"), "node.internal", "INTERNAL"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_errors_of_other_layers_keep_what_they_say(
    error: Exception, code: str, status: str
) -> None:
    failure = describe(error)
    assert (failure.code, failure.status) == (code, status)
    if isinstance(error, store_errors.StoreError):
        assert (failure.retryable, failure.outcome) == (error.retryable, error.outcome)
        assert failure.message == str(error)


def test_a_code_says_one_thing_of_retries() -> None:
    retryable_by_code: dict[str, set[bool]] = {}
    for kind in [*error_classes(), *HaError.__subclasses__()]:
        retryable_by_code.setdefault(kind.code, set()).add(kind.retryable)
    assert [code for code, said in retryable_by_code.items() if len(said) > 1] == []


FINAL = sorted({kind.code for kind in error_classes() if not kind.retryable})


@pytest.mark.parametrize("code", FINAL)
async def test_our_client_sends_once_what_is_refused_for_good(code: str) -> None:
    async def find(_deadline: Deadline) -> Any:
        return SimpleNamespace(address="here:1")

    class Refusing(Calls):
        async def once(self, *_: Any, **__: Any) -> Any:
            self.attempts += 1
            assert self.attempts == 1, "it was sent again"
            raise from_pb(
                common_pb2.Error(code=code, outcome=common_pb2.OUTCOME_NOT_APPLIED, message="no")
            )

    router = SimpleNamespace(where="", leader=find, leader_failed=lambda _address: None)
    calls = Refusing(cast(Any, router))
    with pytest.raises(QuorumlogError) as refused:
        await calls.leader("Any", None, Deadline(PATIENCE_S * 1_000), is_repeatable=True)
    assert refused.value.code == code


def test_a_defect_promises_nothing() -> None:
    assert describe(KeyError("x")).outcome is Outcome.UNKNOWN
    assert not describe(KeyError("x")).retryable


def test_the_page_is_current_and_names_every_code() -> None:
    assert repository.text("docs/errors.md") == page(), (
        "run: python -m node.errors.reference > docs/errors.md"
    )
    assert all(f"| `{error.code}` |" in page() for error in EXAMPLES)
    assert "| `store.full` | RESOURCE_EXHAUSTED | yes | not applied |" in page()
