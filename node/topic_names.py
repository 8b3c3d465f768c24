"""Which topic names belong to the system.

Owns the list; must not know which topics exist. RocketMQ's own are reserved too, so that a store
directory means the same to its tools. Source: storage-formats 8.2.
"""

from typing import Final

_PREFIXES: Final = ("rmq_sys_", "RMQ_SYS_")
_NAMES: Final = frozenset(
    {
        "OFFSET_MOVED_EVENT",
        "SCHEDULE_TOPIC_XXXX",
        "SELF_TEST_TOPIC",
        "TBW102",
        "TRANS_CHECK_MAX_TIME_TOPIC",
    }
)


def is_reserved(topic: str) -> bool:
    """Say whether clients may not create, delete or write a topic of this name."""
    return topic.startswith(_PREFIXES) or topic in _NAMES
