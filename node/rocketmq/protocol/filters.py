"""Filter expressions of the protocol: the messages that a consumer wants.

Owns how an expression is read; must not know how messages are filtered.
"""

from typing import Final, NamedTuple

from node.rocketmq.protocol.names import check_tag, tags_in
from node.rocketmq.protocol.statuses import CallRefusedError
from quorumlog.pb.rocketmq_pb2 import Code, FilterExpression, FilterType

TAG_COUNT_MAX: Final = 64
EXPRESSION_LENGTH_MAX: Final = 16_384
ALL: Final = "*"


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
    if not text or text == ALL:
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
