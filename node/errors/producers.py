"""Errors about named producers. `node.errors.common` describes the fields of every error.

Owns no rule; must not know which code raises them.
"""

from node.errors.common import NodeError


class ProducerFencedError(NodeError):
    """Another process has claimed the name of this producer since, and only that one may append
    and end transactions.

    The log is unchanged; no later append of this process will succeed.
    """

    code, status = "node.producer_fenced", "FAILED_PRECONDITION"

    def __init__(self, name: str, number: int, last: int) -> None:
        super().__init__(name, number, last)
        self.name, self.number, self.last = name, number, last

    def __str__(self) -> str:
        return (
            f"incarnation {self.number} of producer {self.name!r} is not the last one, which is "
            f"{self.last}; end this process, or use another name"
        )
