"""Answers to a RocketMQ client: the codes of its protocol, from every error of ours.

Owns the translation. Business errors travel in the response with gRPC's OK; a transport error would
reach applications as trouble with the connection. Source: protocol sections 1.6, 8.1, 15, 16.
"""

from typing import Final

from node.errors.translation import describe
from quorumlog.pb.rocketmq_pb2 import Code, Status
from store.errors import CorruptionError, LimitExceededError

OK: Final = Status(code=Code.OK, message="OK")

_MESSAGE_LENGTH_MAX: Final = 1_024

CODES: Final[dict[str, Code]] = {
    name: code
    for code, names in {
        Code.TOPIC_NOT_FOUND: "node.unknown_topic node.unknown_queue",
        Code.ILLEGAL_TOPIC: "node.reserved_topic store.bad_topic",
        Code.CONSUMER_GROUP_NOT_FOUND: "node.unknown_group",
        Code.UNAUTHORIZED: "node.unauthenticated",
        Code.FORBIDDEN: (
            "node.forbidden node.topic_not_writable node.topic_not_readable node.group_disabled "
            "node.topic_forbidden node.group_orderly store.inner_batch"
        ),
        Code.BAD_REQUEST: "node.bad_request node.limit_exceeded store.record_format",
        Code.MESSAGE_BODY_TOO_LARGE: "store.limit_exceeded",
        Code.ILLEGAL_FILTER_EXPRESSION: "node.bad_filter",
        Code.ILLEGAL_DELIVERY_TIME: "node.delay_too_long",
        Code.ILLEGAL_OFFSET: "store.out_of_range store.no_beginning",
        Code.INVALID_RECEIPT_HANDLE: "node.stale_handle",
        Code.INVALID_TRANSACTION_ID: "node.unknown_transaction node.transaction_ended",
        Code.MESSAGE_NOT_FOUND: "node.message_not_found node.no_such_offset node.delayed_gone",
        Code.NOT_IMPLEMENTED: "node.unimplemented node.rocketmq_off node.not_served",
        Code.PRECONDITION_FAILED: (
            "node.wrong_cluster node.upgrade_refused node.wrong_mode node.unknown_producer "
            "node.producer_fenced node.duplicate_expired node.sequence_reused node.conflict "
            "node.topic_exists node.group_not_empty node.group_kind node.client_id_in_use "
            "node.already_resent ha.promotion_refused raft.change_invalid raft.transfer_invalid "
            "raft.recovery_refused"
        ),
        Code.TOO_MANY_REQUESTS: (
            "node.busy store.busy raft.busy node.limit_reached node.delayed_full "
            "node.pop_conflict node.responses_wait node.rate_limited"
        ),
        Code.MASTER_PERSISTENCE_TIMEOUT: (
            "node.timeout node.outcome_unknown node.batch_undecided node.change_timeout "
            "store.flush_timeout"
        ),
        Code.PROXY_TIMEOUT: "node.read_timeout node.read_failed node.request_slow",
        Code.HA_NOT_AVAILABLE: (
            "node.not_leader node.not_ready node.transferring node.draining node.shutting_down "
            "node.not_applied node.out_of_sequence node.state_diverged node.stream_silent "
            "ha.not_master ha.state_missing ha.promotion_timeout ha.promotion_lost store.full "
            "store.file_system store.closed store.damage_wider store.derived_damage "
            "raft.not_leader raft.transferring raft.change_refused raft.transfer_refused "
            "raft.hard_state_not_saved"
        ),
        # The client asks again, which is wanted of a queue that is held.
        Code.INTERNAL_SERVER_ERROR: (
            "node.queue_held node.unknown_command node.newer_level store.sync_failed store.locked "
            "store.layout store.tail_not_cut store.corruption store.foreign_entry "
            "store.snapshot_needed store.queue_order store.derived_file raft.peer_protocol "
            "raft.term_jump raft.foreign_chain raft.compaction_refused"
        ),
    }.items()
    for name in names.split()
}
"""The protocol's code for each code of ours but those of the name server, which no call reaches."""


class CallRefusedError(Exception):
    """A call was refused, with the code of the client's protocol.

    The call changed nothing, unless the code says that its outcome is unknown.
    """

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(code, message)
        self.code, self.message = code, message

    def __str__(self) -> str:
        return f"{Code.Name(self.code)}: {self.message}"


def status_of(error: Exception) -> Status:
    """Return the status for a client from an error of any layer."""
    if isinstance(error, CallRefusedError):
        return Status(code=error.code, message=error.message[:_MESSAGE_LENGTH_MAX])
    failure = describe(error)
    code = CODES.get(failure.code, Code.INTERNAL_SERVER_ERROR)
    if isinstance(error, LimitExceededError) and error.what == "properties":
        code = Code.MESSAGE_PROPERTIES_TOO_LARGE
    if isinstance(error, CorruptionError) and error.retryable:
        # Push consumers try again 1 s later, and a simple consumer of Node.js does after 50000 to
        # 50002 alone: it hands TOO_MANY_REQUESTS to its application.
        code = Code.HA_NOT_AVAILABLE
    return Status(code=code, message=f"{failure.code}: {failure.message}"[:_MESSAGE_LENGTH_MAX])


def common(statuses: list[Status]) -> Status:
    """Return the status of a whole from those of its parts: theirs if all have one code."""
    if len({status.code for status in statuses}) == 1:
        return statuses[0]
    return Status(code=Code.MULTIPLE_RESULTS, message="see the status of each entry")
