"""A topic's settings, offsets, and the types of messages that a topic takes, in RocketMQ's words.

Owns the names and the rule of types. A topic without a type is MIXED, and takes all.
Source: RocketMQ TopicMessageType, DefaultTopicMessageTypeValidator.
"""

from typing import Final, NamedTuple

MIXED: Final = "MIXED"
TOPIC_TYPES: Final = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", MIXED)
ATTRIBUTE: Final = "message.type"
"""Attribute of a topic in RocketMQ's tables. Deviation: without it RocketMQ's topics are NORMAL."""


def takes(topic_type: str, message_type: str) -> bool:
    """Whether a topic takes a message of this type."""
    return topic_type in (MIXED, message_type)


def type_of_attributes(attributes: object) -> str:
    """Return the type in a row of RocketMQ's table of topics; MIXED without one."""
    declared = attributes.get(ATTRIBUTE, MIXED) if isinstance(attributes, dict) else MIXED
    return declared if declared in TOPIC_TYPES else MIXED


Offsets = dict[str, dict[int, int]]
"""Topic, queue id: the next offset to consume."""


class TopicSettings(NamedTuple):
    """The settings of a topic. `permission`: 4 read, 2 write, as in RocketMQ."""

    queue_count: int
    permission: int
    message_type: str = MIXED
