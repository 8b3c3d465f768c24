"""Headers in both forms, against frames of RocketMQ's own classes; hostile ones are refused."""

import json
import struct
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.framed.frames import FrameFault
from node.rocketmq.remoting.protocol.command import (
    EXT_COUNT_MAX,
    Command,
    decode,
    decode_ends,
    encode_head,
)

_TEXT = Path(__file__).with_name("frames.txt").read_text().splitlines()[1:]
FRAMES = {name: bytes.fromhex(hexed) for name, hexed in zip(_TEXT[::2], _TEXT[1::2], strict=True)}


def parts_of(frame: bytes) -> tuple[int, bytes, bytes]:
    """Cut a frame by hand."""
    length, word = struct.unpack_from(">II", frame)
    assert length == len(frame) - 4
    size = word & 0xFFFFFF
    return word >> 24, frame[8 : 8 + size], frame[8 + size :]


@pytest.mark.parametrize("name", FRAMES)
def test_a_frame_of_rocketmq_is_read_and_written_again(name: str) -> None:
    kind, header, body = parts_of(FRAMES[name])
    command = decode(kind, header, body)
    if kind == 0:
        document = json.loads(header)
        assert command.code == document["code"]
        assert command.opaque == document["opaque"]
        assert command.ext == (document.get("extFields") or {})
        assert command.body == body
    ends = decode_ends(kind, header)
    assert (ends.code, ends.opaque, ends.flag) == (command.code, command.opaque, command.flag)
    written = encode_head(command) + command.body
    assert decode(*parts_of(written)) == command


def test_both_forms_of_a_header_say_the_same() -> None:
    fields = ("code", "opaque", "flag", "ext")
    plain = decode(*parts_of(FRAMES["310 request, JSON"]))
    binary = decode(*parts_of(FRAMES["310 request, binary header"]))
    assert {f: getattr(plain, f) for f in fields} == {f: getattr(binary, f) for f in fields}


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"[]",
        b"\xff",
        b'{"code":"10"}',
        b'{"code":2147483648}',
        b'{"opaque":1.5}',
        b'{"flag":true}',
        b'{"extFields":[]}',
        b'{"extFields":{"a":{}}}',
        b'{"remark":7}',
        b"[" * 100_000,
        b'{"code":' + b"9" * 5_000 + b"}",
        json.dumps({"extFields": {str(n): "" for n in range(EXT_COUNT_MAX + 1)}}).encode(),
    ],
    ids=range(13),
)
def test_a_header_that_no_client_sends_is_a_fault(header: bytes) -> None:
    with pytest.raises(FrameFault):
        decode(0, header, b"")


def test_a_header_may_lack_all_but_its_code() -> None:
    command = decode(0, b'{"code":34,"extFields":null,"language":12,"remark":null}', b"")
    assert (command.code, command.ext, command.version, command.remark) == (34, {}, 0, None)
    mixed = decode(0, b'{"extFields":{"a":1,"b":true,"c":null,"d":"x"}}', b"")
    assert mixed.ext == {"a": "1", "b": "true", "d": "x"}


@given(st.sampled_from([0, 1]), st.binary(max_size=64))
def test_any_bytes_as_a_header_are_a_command_or_a_fault(kind: int, header: bytes) -> None:
    with suppress(FrameFault):
        decode(kind, header, b"")
    with suppress(FrameFault):
        decode_ends(kind, header)


def test_a_code_of_pop_survives_a_binary_header() -> None:
    header = struct.pack(">hBhii", 3442, 0, 479, 1, 0) + struct.pack(">ii", 0, 0)
    assert decode(1, header, b"").code == 200_050


def test_text_that_is_no_text_is_written_as_marks() -> None:
    head = encode_head(Command(1, remark="\ud800"))
    assert decode(*parts_of(head)).remark == "?"
