"""Topic names that belong to the system.

Owns the list; must not know which topics exist. RocketMQ's own are reserved too, so that a store
directory means the same to its tools. Source: storage-formats 8.2.
"""

from typing import Final

from store.format import (
    DEAD_LETTER_TOPIC_PREFIX,
    HALF_GIVEN_UP_TOPIC,
    RETRY_TOPIC_PREFIX,
    SCHEDULE_TOPIC,
)

TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
"""The topic to which clients of RocketMQ write what became of each message, as any other topic."""
_OF_GROUPS: Final = (RETRY_TOPIC_PREFIX, DEAD_LETTER_TOPIC_PREFIX)
_PREFIXES: Final = ("rmq_sys_", "RMQ_SYS_", *_OF_GROUPS)
_NAMES: Final = frozenset(
    {
        HALF_GIVEN_UP_TOPIC,
        SCHEDULE_TOPIC,
        "OFFSET_MOVED_EVENT",
        "SELF_TEST_TOPIC",
        "TBW102",
    }
)


def is_reserved(topic: str) -> bool:
    """Whether clients may not create, delete or write a topic of this name."""
    return topic != TRACE_TOPIC and (topic.startswith(_PREFIXES) or topic in _NAMES)


def is_reserved_prefix(prefix: str) -> bool:
    """Whether that is so for all topics whose names begin with this."""
    return prefix.startswith(_PREFIXES) and not TRACE_TOPIC.startswith(prefix)


def is_of_group(topic: str) -> bool:
    """Whether this is a retry or dead-letter topic: there is one of each kind for a group."""
    return topic.startswith(_OF_GROUPS)


def retry_topic(group: str) -> str:
    """Return the topic through which messages come back to a group."""
    return RETRY_TOPIC_PREFIX + group


def dead_letter_topic(group: str) -> str:
    """Return the topic of the messages that a group was given too often."""
    return DEAD_LETTER_TOPIC_PREFIX + group
