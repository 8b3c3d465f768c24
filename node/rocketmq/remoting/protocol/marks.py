"""Marks: what nodes add to commands and answers that they forward to each other.

Owns the names. No client knows them: a command of a client that has one is refused.
"""

from typing import Final

FORWARDED: Final = "__QL_FORWARDED"
"""Ext field of a forwarded command: the address of the client. Such a command is not forwarded
again, and ends with `LED_ELSEWHERE` where this node does not lead."""
NAME: Final = "__QL_NAME"
"""Ext field of a forwarded command: number of the broker name that the client meant."""
TAGS: Final = "__QL_TAGS"
SQL: Final = "__QL_SQL"
"""Ext fields of a pull: what its client reads, as its heartbeat told the node that forwards it."""
KNOWN: Final = "__QL_KNOWN"
"""Ext field of a commit: the newest offset that its client knows to be stored."""
UNANSWERED: Final = "__QL_UNANSWERED"
"""Ext field of a commit: offsets of its client that may be stored since, with blanks between."""
MOVE: Final = "__QL_MOVE"
"""Ext field of a commit and of answers about a group's offset: number of the last move that the
client has followed, or that the leader knows."""
TOLD: Final = "__QL_TOLD"
"""Ext field of a commit: number of the move that its client was told of when it asked for the
group's offset."""
MOVED: Final = "__QL_MOVED"
"""Ext field of an answer to a commit: its client has to go where others moved the group."""
USER: Final = "__QL_USER"
"""Ext field of a forwarded command without a signature: the user of its client; none: it is no
user."""
ADDED: Final = frozenset({FORWARDED, NAME, USER, TAGS, SQL, KNOWN, UNANSWERED, MOVE, TOLD})
"""Ext fields that a client did not sign."""
LED_ELSEWHERE: Final = "__QL_LED_ELSEWHERE"
"""Ext field of an answer to a forwarded command, which changed nothing."""
GREETING: Final = -20_812
"""Code of the first command on a connection between nodes; RocketMQ has no negative ones."""
REPORT: Final = -20_814
"""Code of a command between nodes: its body is a `ReportMembersRequest`, that of its answer a
`ReportMembersResponse`."""
APPLIED: Final = -20_815
"""Code of a command between nodes, answered once the other one has applied an entry."""
WITHDRAWAL: Final = -20_813
"""Code of a one-way command between nodes: the client of a forwarded command has gone."""
WITHDRAWN: Final = "opaque"
"""Ext field of a withdrawal: the number of the command."""
CHALLENGE: Final = "challenge"
"""Ext field of the answer to a greeting: what the next one has to answer, in hexadecimal digits."""
PROOF: Final = "proof"
"""Ext field of the second greeting: the answer to the challenge."""
