"""Errors about producers that have a name. `node/errors/common.py` says what every error has.

Owns no rule; must not know who raises them.
"""

from node.errors.common import NodeError


class ProducerFencedError(NodeError):
    """Another process has claimed the name of this producer since: only that one may append.

    Nothing was written, and nothing of this process will be any more.
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
