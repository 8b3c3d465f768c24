"""Names of the SDK: one meaning a word, in fields of values and arguments of calls."""

import dataclasses
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator

import quorumlog
from tests.quorumlog.surface import calls

OF_CONSUMERS = {
    *("GroupSettings", "GroupInfo", "GroupDescription", "Identity", "TraceEvent"),
    *("GroupOptions", "ConsumeOptions", "PopOptions", "FetchOptions", "PullOptions"),
    *("commit_offsets", "fetch_offsets", "reset_offsets", "dead_letters", "resend_dead_letters"),
    *("group_settings", "set_group_settings", "describe_group", "delete_group", "describe_pop"),
    *("consume", "group_consumer", "pop_consumer", "transaction"),
}
"""Values and calls that name a consumer group."""
READING = {"consume", "pull_consumer", "group_consumer", "seek", "reset_offsets"}
"""Calls that begin at a position, beside the values with their options."""


def _names() -> Iterator[tuple[str, str]]:
    """Yield each name with its value or call."""
    for module in pkgutil.walk_packages(quorumlog.__path__, "quorumlog."):
        if ".pb" not in module.name:
            for kind, value in vars(importlib.import_module(module.name)).items():
                if inspect.isclass(value) and dataclasses.is_dataclass(value):
                    yield from ((kind, field.name) for field in dataclasses.fields(value))
    for made in (quorumlog.Message, quorumlog.MessageBatch, quorumlog.Client):
        yield from ((made.__name__, name) for name in dir(made))
    for call in calls():
        yield from ((call.name, name) for name in call.parameters)


def test_a_word_has_one_meaning() -> None:
    names = {(owner, name) for owner, name in _names() if not name.startswith("_")}
    places = {owner for owner, name in names if name == "position"}
    assert {owner for owner in places if not owner.endswith(("Options", "Arguments"))} == READING
    assert {owner for owner, name in names if name == "group"} == OF_CONSUMERS
    old = r"groups|(min|max)_offset|(lo|hi|\w*(?<!log)_)position|\w*_s"
    assert [pair for pair in sorted(names) if re.fullmatch(old, pair[1])] == []
