"""Nodes of two versions in one cluster: the fields of messages that the older one does not know.

Owns the list of new fields. The older version neither sends nor understands them, so a message
keeps them only from one new node to another; the codec of a real node gives absent fields the same
values. The core has no version: it has to work without these fields.
"""

from __future__ import annotations

from raft.messages import NO_NODE, AppendReply, AppendRequest, Message, VoteReply


def without_news(message: Message) -> Message:
    """Return the rest of a message that passed through the older version."""
    if isinstance(message, AppendReply):
        # The old reply names the place where the logs do not match, and not where they may.
        return message._replace(hint_last=message.refused_prev - 1, hint_runs=())
    if isinstance(message, AppendRequest):
        return message._replace(admitted=0)
    if isinstance(message, VoteReply):
        return message._replace(leader=NO_NODE)
    return message
