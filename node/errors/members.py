"""Errors about changes of members. `node.errors.common` describes the fields of every error."""

from node.errors.common import NodeError
from store.errors import Outcome


class ChangeTimeoutError(NodeError):
    """A change of members was not committed in time. The change may still be committed."""

    code, retryable, status = "node.change_timeout", True, "DEADLINE_EXCEEDED"
    outcome = Outcome.UNKNOWN

    def __init__(self, timeout_ms: int) -> None:
        super().__init__(timeout_ms)
        self.timeout_ms = timeout_ms

    def __str__(self) -> str:
        return (
            f"not committed within {self.timeout_ms} ms, it may still be; "
            f"run 'qlog cluster members' to see, then try again"
        )
