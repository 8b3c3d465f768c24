"""Every error of the node: stable code, numbers and advice, pickling, and what clients are told."""

import inspect
import pickle
from types import SimpleNamespace
from typing import Any, cast

import pytest

from node.errors import common as errors
from node.errors.common import NodeError
from node.errors.reference import codes, error_classes, page
from node.errors.requests import NotServedError
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


def example(kind: type[NodeError]) -> NodeError:
    """An error of a class: its texts are a name, and its numbers 7."""
    needed = [
        one for one in inspect.signature(kind).parameters.values() if one.default is one.empty
    ]
    return kind(*("orders" if one.annotation is str else 7 for one in needed))


EXAMPLES = [
    example(kind)
    for kind in error_classes()
    if issubclass(kind, NodeError) and kind is not NotServedError  # Its maker says what to do.
]


def test_every_class_has_its_own_code_and_a_docstring() -> None:
    classes = {type(error) for error in EXAMPLES}
    assert len({kind.code for kind in classes}) == len(classes) > 60
    beginnings = ("node.", "ha.", "nameserver.")
    assert all(kind.code.startswith(beginnings) and kind.__doc__ for kind in classes)


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
        await calls.leader(None, Deadline(PATIENCE_S * 1_000))
    assert refused.value.code == code


def test_a_defect_promises_nothing() -> None:
    assert describe(KeyError("x")).outcome is Outcome.UNKNOWN
    assert not describe(KeyError("x")).retryable


def test_the_page_is_current_and_names_every_code() -> None:
    assert repository.text("docs/errors.md") == page(), (
        "run: python -m node.errors.reference > docs/errors.md"
    )
    assert repository.text("quorumlog/error_codes.py") == codes(), (
        "run: python -m node.errors.reference --codes > quorumlog/error_codes.py"
    )
    assert all(f"| `{error.code}` |" in page() for error in EXAMPLES)
    assert "| `store.full` | RESOURCE_EXHAUSTED | yes | not applied |" in page()
