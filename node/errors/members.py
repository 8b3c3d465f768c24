"""Errors about changes of members. `node.errors.common` describes the fields of every error."""

from node.errors.common import NodeError
from store.errors import Outcome


class ChangeTimeoutError(NodeError):
    """A change of members was not committed in time. The change may still be committed."""

    code, retryable, status = "node.change_timeout", True, "DEADLINE_EXCEEDED"
    outcome = Outcome.UNKNOWN
    text = (
        "not committed within {timeout_ms} ms, it may still be; run 'qlog cluster members' to see, "
        "then try again"
    )
    timeout_ms: int
