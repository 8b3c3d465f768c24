"""Names and filters that a RocketMQ client may use, and the code for each that it may not.

Owns the rules of sections 8.1 and 15 of the protocol, and how an expression is read; must not know
which topics exist, nor how messages are filtered.
"""

import re
from typing import Final, NamedTuple

from node.broker.groups import member
from node.rocketmq.protocol.statuses import CallRefusedError
from quorumlog.pb.rocketmq_pb2 import Code, FilterExpression, FilterType, Resource
from store.format import DEAD_LETTER_TOPIC_PREFIX
from store.record.topic_names import is_reserved

TOPIC_LENGTH_MAX: Final = 127
GROUP_LENGTH_MAX: Final = 120
TAG_COUNT_MAX: Final = 64
EXPRESSION_LENGTH_MAX: Final = 16_384
TAG_SEPARATOR: Final = "|"
MESSAGE_GROUP_SIZE_BYTES_MAX: Final = 63
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_CHARACTERS: Final = frozenset("%|_-0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_SYSTEM_GROUP: Final = "CID_RMQ_SYS_"


def has_control(text: str) -> bool:
    """Whether a text has a control character."""
    return _CONTROL.search(text) is not None


def topic_name(topic: Resource, *, for_reading: bool = False) -> str:
    """Return the name of a topic. Raises CallRefusedError.

    Dead letters may be read, but not sent to.
    """
    name = _checked_name("topic", topic, TOPIC_LENGTH_MAX, Code.ILLEGAL_TOPIC)
    if is_reserved(name) and not (for_reading and name.startswith(DEAD_LETTER_TOPIC_PREFIX)):
        text = f"topic {name!r} belongs to the system; use another name"
        raise CallRefusedError(Code.ILLEGAL_TOPIC, text)
    return name


def group_name(group: Resource) -> str:
    """Return the name of a consumer group. Raises CallRefusedError."""
    code = Code.ILLEGAL_CONSUMER_GROUP
    name = _checked_name("group", group, GROUP_LENGTH_MAX, code)
    if name.startswith(_SYSTEM_GROUP):
        raise CallRefusedError(code, f"groups {_SYSTEM_GROUP}... are the system's")
    return name


def _checked_name(what: str, resource: Resource, length_max: int, code: Code) -> str:
    name, namespace = resource.name, resource.resource_namespace
    if namespace:
        raise CallRefusedError(code, f"namespace {namespace!r}: use none, there are none")
    if not 1 <= len(name) <= length_max or not _CHARACTERS.issuperset(name):
        rule = f"1 to {length_max} of letters, digits, '%', '|', '_' and '-'"
        raise CallRefusedError(code, f"{what} {name[:200]!r} must have {rule}")
    return name


def tags_in(expression: str) -> list[str]:
    """Return the tags of an expression `a || b`, each once. An empty part is none."""
    parts = dict.fromkeys(part.strip() for part in expression.split("||"))
    return [tag for tag in parts if tag]


def comparable(expression: str, *, is_sql: bool) -> str:
    """Return an expression in the form in which the leader compares what members read; empty:
    everything."""
    if is_sql:
        return member.comparable((), expression)
    return member.comparable(tags_in(expression.strip().removeprefix("*")), "")


def check_tag(tag: str) -> None:
    """Raise CallRefusedError for a tag that could not be filtered by."""
    if not tag.strip() or TAG_SEPARATOR in tag or has_control(tag):
        rule = "must have other characters than blanks, no '|' and no control characters"
        raise CallRefusedError(Code.ILLEGAL_MESSAGE_TAG, f"tag {tag[:200]!r} {rule}")


def check_key(key: str) -> None:
    """Raise CallRefusedError for a key that could not be looked up."""
    if not key.strip() or has_control(key):
        rule = "must have other characters than blanks, and no control characters"
        raise CallRefusedError(Code.ILLEGAL_MESSAGE_KEY, f"key {key[:200]!r} {rule}")


def check_message_group(name: str) -> None:
    """Raise CallRefusedError for an invalid name of a message group."""
    size_bytes = len(name.encode())
    if not name.strip() or size_bytes > MESSAGE_GROUP_SIZE_BYTES_MAX or has_control(name):
        rule = f"must have 1 to {MESSAGE_GROUP_SIZE_BYTES_MAX} bytes and no control characters"
        raise CallRefusedError(Code.ILLEGAL_MESSAGE_GROUP, f"message group {name[:200]!r} {rule}")


class Filter(NamedTuple):
    """Messages with one of the tags, or for which an SQL92 expression is true; neither: all."""

    tags: tuple[str, ...] = ()
    sql: str = ""


def filter_of(expression: FilterExpression) -> Filter:
    """Return the filter of a client's expression. Raises CallRefusedError."""
    if len(expression.expression) > EXPRESSION_LENGTH_MAX:
        what = f"{len(expression.expression)} characters, the limit is {EXPRESSION_LENGTH_MAX}"
        raise CallRefusedError(Code.ILLEGAL_FILTER_EXPRESSION, what)
    text = expression.expression.strip()
    if not text or text == "*":
        return Filter()
    if expression.type == FilterType.SQL:
        return Filter(sql=text)
    tags = tuple(tags_in(text))
    if not tags:
        raise CallRefusedError(Code.ILLEGAL_FILTER_EXPRESSION, f"{text[:200]!r} names no tag")
    if len(tags) > TAG_COUNT_MAX:
        what = f"{len(tags)} tags, the limit is {TAG_COUNT_MAX}"
        raise CallRefusedError(Code.ILLEGAL_FILTER_EXPRESSION, what)
    try:
        for tag in tags:
            check_tag(tag)
    except CallRefusedError as error:
        raise CallRefusedError(Code.ILLEGAL_FILTER_EXPRESSION, error.message) from error
    return Filter(tags=tags)
