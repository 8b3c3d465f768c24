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
    text = (
        "incarnation {number} of producer {name!r} is not the last one, which is {last}; end this "
        "process, or use another name"
    )
    name: str
    number: int
    last: int
