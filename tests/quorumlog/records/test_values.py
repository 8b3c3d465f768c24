"""Results made from messages by the names of their fields."""

from dataclasses import dataclass

import pytest

from quorumlog.pb import retry_pb2
from quorumlog.records.values import of_pb, to_dict


@dataclass(frozen=True)
class Import:
    """Some result."""

    refusals: tuple[str, ...]
    topic_count: int
    group: str


def test_result_has_the_fields_of_the_message_and_the_others() -> None:
    pb = retry_pb2.ImportConfigFilesResponse(refusals=["a", "b"], topic_count=3, group_count=4)
    result = of_pb(Import, pb, group="g0")
    assert result == Import(("a", "b"), 3, "g0")
    assert to_dict(result) == {"refusals": ("a", "b"), "topic_count": 3, "group": "g0"}


def test_other_field_replaces_that_of_the_message() -> None:
    pb = retry_pb2.ImportConfigFilesResponse(topic_count=3)
    assert of_pb(Import, pb, group="g0", topic_count=5).topic_count == 5


def test_field_that_nothing_gives_is_an_error() -> None:
    with pytest.raises(AttributeError, match="group"):
        of_pb(Import, retry_pb2.ImportConfigFilesResponse())
