"""Errors: families, words of nodes, bare statuses, pickling."""

import inspect
import pickle
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

import quorumlog
import raft.errors
import store.errors
from node.errors.reference import error_classes
from quorumlog import errors
from quorumlog.command_errors import explain
from quorumlog.errors import Outcome, QuorumlogError
from quorumlog.pb import common_pb2

CLASSES = [
    value
    for value in vars(errors).values()
    if inspect.isclass(value) and issubclass(value, QuorumlogError)
]


@pytest.mark.parametrize("family", CLASSES, ids=lambda c: c.__name__)
def test_all_errors_pickle_with_everything_they_know(family: type[QuorumlogError]) -> None:
    error = family(
        "7 things happened; do 1 thing",
        code="node.x",
        retryable=True,
        outcome=Outcome.APPLIED,
        leader_id=3,
        leader_address="h:1",
        retry_after_ms=20,
        attempts=4,
    )
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is family
    assert str(again) == "7 things happened; do 1 thing"
    assert vars(again) == vars(error)
    assert (again.outcome, again.attempts, again.leader_id) == (Outcome.APPLIED, 4, 3)
    out_of_range = errors.OffsetOutOfRangeError("x", first_offset=3, end_offset=9)
    assert pickle.loads(pickle.dumps(out_of_range)).end_offset == 9


def test_the_package_exports_all_errors() -> None:
    assert all(getattr(quorumlog, family.__name__) is family for family in CLASSES)
    names = {family.__name__ for family in CLASSES}
    assert names <= {*quorumlog.__all__}
    assert names <= {*dir(quorumlog)}


def test_defaults_are_those_of_the_family() -> None:
    error = errors.BusyError("full; wait")
    assert (error.code, error.retryable, error.outcome) == (
        "client.busy",
        True,
        Outcome.NOT_APPLIED,
    )
    assert errors.OutcomeUnknownError("x").outcome is Outcome.UNKNOWN
    assert explain(error).what == "full"
    assert explain(error).do == "wait"


def test_the_words_of_a_node_are_kept() -> None:
    described = common_pb2.Error(
        code="node.not_leader",
        message="node 2 leads; ask there",
        retryable=True,
        outcome=common_pb2.OUTCOME_NOT_APPLIED,
        leader_id=2,
        leader_address="h:2",
        retry_after_ms=5,
    )
    error = errors.from_pb(described)
    assert isinstance(error, errors.NotLeaderError)
    assert (error.leader_id, error.leader_address, error.retry_after_ms) == (2, "h:2", 5)
    unheard_of = errors.from_pb(common_pb2.Error(code="node.never_heard_of"))
    assert type(unheard_of) is errors.ServerError
    assert (unheard_of.code, unheard_of.outcome) == ("node.never_heard_of", Outcome.UNKNOWN)


# Of these a client makes no family: nothing that a program would do differently.
WITHOUT_FAMILY = {
    "node.already_resent",
    "node.change_timeout",
    "node.duplicate_expired",
    "node.last_admin",
    "node.newer_level",
    "node.not_served",
    "node.ready_made_role",
    "node.request_slow",
    "node.responses_wait",
    "node.rocketmq_off",
    "node.stream_silent",
    "node.unknown_command",
    "node.upgrade_refused",
    "node.users_not_prepared",
    "node.users_off",
    "node.wrong_mode",
}


def test_every_code_of_a_node_has_a_family_or_is_known_to_have_none() -> None:
    codes = {kind.code for kind in error_classes() if kind.code.startswith("node.")}
    families = {code: type(errors.from_pb(common_pb2.Error(code=code))) for code in codes}
    assert {c for c, family in families.items() if family is errors.ServerError} == WITHOUT_FAMILY
    for code, family in (
        (store.errors.BusyError.code, errors.BusyError),
        (raft.errors.BusyError.code, errors.BusyError),
        (raft.errors.NotLeaderError.code, errors.NotLeaderError),
        ("store.full", errors.StoreFullError),
        ("node.delayed_gone", errors.DelayedGoneError),
        ("node.delayed_full", errors.LimitReachedError),
        ("node.delay_too_long", errors.InvalidRequestError),
        ("store.record_format", errors.InvalidRequestError),
        ("store.limit_exceeded", errors.TooLargeError),
    ):
        assert type(errors.from_pb(common_pb2.Error(code=code))) is family


@pytest.mark.parametrize(
    ("status", "details", "family", "outcome"),
    [
        ("UNAVAILABLE", "Socket closed", errors.UnavailableError, Outcome.UNKNOWN),
        (
            "UNAVAILABLE",
            "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: Failed to "
            "connect to remote host: connect: Connection refused (111)",
            errors.UnavailableError,
            Outcome.NOT_APPLIED,
        ),
        (
            "UNAVAILABLE",
            "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: connection "
            "attempt timed out before receiving SETTINGS frame",
            errors.UnavailableError,
            Outcome.NOT_APPLIED,
        ),
        ("DEADLINE_EXCEEDED", "", errors.DeadlineError, Outcome.UNKNOWN),
        ("CANCELLED", "", errors.UnavailableError, Outcome.UNKNOWN),
        ("INTERNAL", "Received RST_STREAM with error code 2", errors.UnavailableError, None),
        ("INTERNAL", "bug", errors.InternalError, Outcome.UNKNOWN),
        ("UNIMPLEMENTED", "", errors.UnimplementedError, Outcome.NOT_APPLIED),
        ("RESOURCE_EXHAUSTED", "Received message larger than max", errors.TooLargeError, None),
        ("RESOURCE_EXHAUSTED", "Concurrent RPC limit", errors.BusyError, Outcome.NOT_APPLIED),
        ("UNAUTHENTICATED", "", errors.PermissionDeniedError, Outcome.NOT_APPLIED),
        ("INVALID_ARGUMENT", "", errors.InvalidRequestError, Outcome.NOT_APPLIED),
        ("UNKNOWN", "Exception iterating", errors.InternalError, Outcome.UNKNOWN),
    ],
)
def test_a_bare_status_is_read_with_care(
    status: str, details: str, family: type[QuorumlogError], outcome: Outcome | None
) -> None:
    error = errors.from_status(status, details, "h:1")
    assert type(error) is family
    assert str(error).startswith("h:1: ")
    assert "last error" not in str(error)
    if outcome is not None:
        assert error.outcome is outcome


def failed_call(trailer: bytes) -> Any:
    """What is read of a grpc.aio.AioRpcError."""
    return SimpleNamespace(
        trailing_metadata=lambda: ((errors.ERROR_TRAILER, trailer),),
        code=lambda: grpc.StatusCode.UNAVAILABLE,
        details=lambda: "Socket closed",
    )


def test_a_trailer_that_no_node_writes_leaves_the_status_of_grpc() -> None:
    described = common_pb2.Error(code="node.busy", message="full; wait").SerializeToString()
    assert type(errors.from_rpc(failed_call(described), "h:1")) is errors.BusyError
    error = errors.from_rpc(failed_call(b"\xff" + described), "h:1")
    assert type(error) is errors.UnavailableError
    assert error.outcome is Outcome.UNKNOWN
    assert "Socket closed" in str(error)
