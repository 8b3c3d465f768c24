"""Equal states have equal digests, whatever way they took; any other value has another digest."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from random import Random
from typing import Any

import pytest

from node.config.limits import Limits
from node.state import digest as digests
from node.state.digest import (
    DIGEST_SIZE_BYTES,
    FORM,
    Digest,
    DigestFormatError,
    digest_of,
    from_pb,
    to_pb,
)
from node.state.image import decode_image, encode_image
from node.state.registry import TABLES
from node.state.state import EMPTY_IMAGE, State, StateImage, Versions
from node.state.tables import level
from node.state.tables.topic_types import Offsets
from quorumlog.pb import state_pb2 as pb
from tests.node.checkpoints import SMALL, loaded, saved
from tests.node.commands import SMALL_LIMITS, put_topic
from tests.node.state.random_commands import LEVEL_MAX, random_command
from tests.seeds import some_of

COMMAND_COUNT = 400
CORE_TABLES = ("topics", "groups", "producers", "members")


def tables_of(image: StateImage) -> tuple[tuple[str, bytes], ...]:
    return digest_of(image, 0).tables


def applied(seed: int, count: int = COMMAND_COUNT, limits: Limits = SMALL_LIMITS) -> State:
    """A state after random commands of all tables."""
    state, random = State(limits), Random(seed)
    for position in range(0, 100 * count, 100):
        state.apply_command(random_command(random, state), position)
    return state


def contents(image: StateImage) -> object:
    """All of an image that is digested, as JSON."""
    decoded = json.loads(encode_image(image))
    parts = {name: content for name, (_, content) in decoded["parts"].items()}
    return {name: decoded[name] for name in CORE_TABLES}, parts


@pytest.fixture(scope="module", autouse=True)
def build_of_the_commands() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(level, "LEVEL", LEVEL_MAX)
        yield


@pytest.fixture(scope="module")
def full() -> StateImage:
    """An image with rows in every table."""
    images = [applied(seed).image() for seed in range(8)]
    image = images[0]
    for other in images:
        for name, table in other.tables.items():
            previous = image.tables.get(name)
            if previous is None or len(str(previous.content)) < len(str(table.content)):
                image.tables[name] = table
    image = image._replace(
        **{
            name: max((getattr(i, name) for i in images), key=lambda rows: len(str(rows)))
            for name in CORE_TABLES
        }
    )
    assert set(image.tables) == {kind.name for kind in TABLES}
    return image


# --- Whatever way a state took ---


@pytest.mark.parametrize("seed", some_of(range(12), 3))
def test_digest_is_that_of_the_state_whatever_way_it_took(seed: int, tmp_path: Path) -> None:
    """One replica applies all along, with a digest now and then; others begin with snapshots and
    checkpoints of it at random places. An image stays as it was when it was taken."""
    random = Random(seed)
    states = [State(SMALL_LIMITS) for _ in range(3)]
    image = states[0].image()
    data = encode_image(image)
    files = saved(tmp_path)
    for number in range(COMMAND_COUNT):
        command = random_command(random, states[0])
        for state in states:
            state.apply_command(command, 100 * number)
            state.applied_index = number
        if not random.randrange(25):
            states[1] = State(SMALL_LIMITS, decode_image(encode_image(states[1].image())))
        if not random.randrange(60):
            files.save(states[2].image(), number)
            files, loaded_image = loaded(tmp_path)
            assert loaded_image is not None
            states[2] = State(SMALL_LIMITS, loaded_image)
        if not random.randrange(20):
            first = digest_of(states[0].image(), number)
            assert digest_of(states[1].image(), number) == first
            assert digest_of(states[2].image(), number) == first
            assert encode_image(image) == data
            image = states[0].image()
            data = encode_image(image)
            assert all(encode_image(state.image()) == data for state in states[1:])
    assert len(first.tables) > len(CORE_TABLES)
    assert any(table.content for table in states[0].image().tables.values())


def test_order_in_which_rows_came_does_not_matter(full: StateImage) -> None:
    def turned(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: turned(value[key]) for key in reversed(value)}
        return value

    mixed = full._replace(
        topics=turned(full.topics),
        groups=turned(full.groups),
        members=turned(full.members),
        tables={
            name: table._replace(content=turned(table.content))
            for name, table in reversed(full.tables.items())
        },
    )
    assert list(mixed.groups) != list(full.groups)
    assert tables_of(mixed) == tables_of(full)


def test_order_in_which_producers_are_forgotten_counts(full: StateImage) -> None:
    assert len(full.producers) > 1
    turned = full._replace(producers=full.producers[::-1])
    assert digest_of(turned, 0).differing(digest_of(full, 0)) == ("producers",)


def test_counters_that_no_rule_reads_do_not_count(full: StateImage) -> None:
    other = full._replace(
        applied_index=99,
        next_command_offset=98,
        refused_count=97,
        versions=Versions(9, 9, 9, 9, 9),
        tables={name: table._replace(version=96) for name, table in full.tables.items()},
    )
    assert tables_of(other) == tables_of(full)


def test_size_of_portions_does_not_count(full: StateImage, monkeypatch: pytest.MonkeyPatch) -> None:
    table_digests = []
    for weight in (1, 3, 64, 1 << 40):
        monkeypatch.setattr(digests, "_WEIGHT_AT_ONCE", weight)
        table_digests.append(tables_of(full))
    assert len(set(table_digests)) == 1


# --- Any other value ---


def changes(value: Any) -> Iterator[Any]:
    """Yield copies of a JSON value with one value of it changed, added or left out."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield {k: v for k, v in value.items() if k != key}
            for changed in changes(inner):
                yield {**value, key: changed}
    elif isinstance(value, list):
        for at, inner in enumerate(value):
            yield value[:at] + value[at + 1 :]
            for changed in changes(inner):
                yield [*value[:at], changed, *value[at + 1 :]]
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield value + 1
        yield value ^ (1 << 40)
    else:
        yield f"{value}x"


@pytest.mark.parametrize("name", [*(kind.name for kind in TABLES), "groups"])
def test_every_single_change_of_a_row_changes_the_digest(full: StateImage, name: str) -> None:
    if name == "groups":
        content: Any = json.loads(json.dumps(full.groups))
        others = (full._replace(groups=changed) for changed in changes(content))
    else:
        table = full.tables[name]
        content = json.loads(json.dumps(table.content))
        others = (
            full._replace(tables={**full.tables, name: table._replace(content=changed)})
            for changed in changes(content)
        )
    before, count = digest_of(full, 0), 0
    for other in others:
        assert digest_of(other, 0).differing(before) == (name,)
        count += 1
    assert count >= 3


def test_no_two_shapes_of_nested_rows_are_taken_for_each_other() -> None:
    shapes: list[dict[str, Offsets]] = [
        {"g": {}},
        {"g": {"t": {}}},
        {"g": {"t": {0: 1}}},
        {"g": {}, "t": {}},
        {"g": {"t": {}, "u": {}}},
        {"g": {"t": {}}, "u": {}},
    ]
    digests = {tables_of(EMPTY_IMAGE._replace(groups=shape)) for shape in shapes}
    assert len(digests) == len(shapes)


# --- The form ---


def test_form_is_the_one_that_other_builds_compute() -> None:
    """A change of what is digested, or how, needs another FORM; else builds fence each other."""
    assert FORM == 2
    texts = {
        "topics": '["%RETRY%readers","[",3],1,4,"FIFO",["orders","[",3],4,6,"MIXED",',
        "groups": '["idle","{",0],["readers","{",2],["%RETRY%readers",{"0":4}],'
        '["orders",{"0":123,"3":120}],',
        "producers": "[18364758544493064720,9,[100,200,300]],[1,0,[50]],",
        "members": '[1,"[",2],"127.0.0.1:8081","127.0.0.1:40911",[2,"[",2],"[::1]:8082","",',
    }
    assert dict(tables_of(SMALL)) == {
        name: blake2b(text.encode(), digest_size=16).digest() for name, text in texts.items()
    }


@pytest.mark.long  # Two interpreters.
def test_digest_is_the_same_in_every_process() -> None:
    code = (
        "from tests.node.state.test_digest import LEVEL_MAX, applied, level, tables_of\n"
        "level.LEVEL = LEVEL_MAX\n"
        "print(tables_of(applied(5).image()))"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert outputs == {f"{tables_of(applied(5).image())}\n"}


# --- Messages of others ---


def test_digest_travels_whole(full: StateImage) -> None:
    digest = digest_of(full, 1 << 40)
    assert from_pb(pb.StateDigest.FromString(to_pb(digest).SerializeToString())) == digest


def good_message() -> pb.StateDigest:
    return to_pb(Digest(7, FORM, (("a", b"x" * DIGEST_SIZE_BYTES), ("b", b"y" * 16))))


def test_messages_out_of_bounds_are_refused() -> None:
    wrong = [good_message() for _ in range(7)]
    wrong[0].position = -1
    wrong[1].position = (1 << 60) + 1
    for number in range(64):
        wrong[2].tables.add(table=f"t{number}", digest=bytes(16))
    wrong[3].tables[0].table = ""
    wrong[4].tables[0].table = "n" * 65
    wrong[5].tables[1].digest = bytes(15)
    wrong[6].tables[1].table = "a"
    from_pb(good_message())
    for message in wrong:
        with pytest.raises(DigestFormatError):
            from_pb(message)


def test_tables_that_only_one_side_has_differ() -> None:
    digest = Digest(7, FORM, (("a", b"x"), ("b", b"y")))
    other = Digest(7, FORM, (("a", b"x"), ("c", b"y")))
    assert digest.differing(other) == ("b", "c")
    assert digest.differing(digest) == ()


# --- The commands ---


def test_command_with_a_point_or_a_digest_changes_nothing() -> None:
    state = applied(2)
    before = contents(state.image())
    for command in (
        pb.Command(digest_point=pb.DigestPoint()),
        pb.Command(state_digest=good_message()),
    ):
        command.put_member.SetInParent()
        assert state.apply_command(command, 1) is None
        assert state.digest_command == command
    assert contents(state.image()) == before
    other, state = put_topic("a"), State(SMALL_LIMITS)
    other.digest_point.SetInParent()
    state.apply_command(other, 1)
    assert state.digest_command is None, "it is a topic and no point"
