"""Types of messages that a topic takes, in RocketMQ's words.

Owns the names and the rule. A topic without a type is MIXED, and takes all.
Source: RocketMQ TopicMessageType, DefaultTopicMessageTypeValidator.
"""

from typing import Final

MIXED: Final = "MIXED"
TOPIC_TYPES: Final = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", MIXED)
ATTRIBUTE: Final = "message.type"
"""Attribute of a topic in RocketMQ's tables. Deviation: without it RocketMQ's topics are NORMAL."""


def takes(topic_type: str, message_type: str) -> bool:
    """Whether a topic takes a message of this type."""
    return topic_type in (MIXED, message_type)


def type_of_attributes(attributes: object) -> str:
    """Return the type in a row of RocketMQ's table of topics; MIXED without one."""
    found = attributes.get(ATTRIBUTE, MIXED) if isinstance(attributes, dict) else MIXED
    return found if found in TOPIC_TYPES else MIXED
