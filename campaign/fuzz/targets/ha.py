"""Targets of master-slave mode: both directions of its link, with checks and without.

The first byte says which: its lowest bit is the direction, the next one whether the stream has
checks.
"""

from collections.abc import Iterator
from random import Random
from typing import Any, Final

from campaign.fuzz.target import FuzzTarget, claim
from campaign.fuzz.targets.streams import same_however_cut
from node.replication.ha.core import wire
from node.replication.ha.core.types import AckMode, EpochStart, HaBinding, HaStanding
from store.files.checksum import crc32c

_FIXED: Final = ({1: 16, 2: 12}, {1: 20, 2: 36})
"""Sizes of the heads of RocketMQ's states, by direction: up, down."""


def _link(data: bytes) -> None:
    if not data:
        return
    is_down, is_checked = bool(data[0] & 1), bool(data[0] & 2)
    stream = data[1:]

    def parse(pieces: Iterator[bytes], frames: list[Any]) -> None:
        parser: Any = wire.DownParser if is_down else wire.UpParser
        parser = parser(is_checked=is_checked)
        for piece in pieces:
            frames += parser.feed(piece)
            claim(parser.held_size_bytes <= len(stream), "more is held than has arrived")

    # Frames in front of a bad one are dropped with their link, so only good streams are compared.
    parse(iter((stream,)), [])
    frames = same_however_cut(stream, parse, (wire.HaFrameError,))
    again = b"".join(wire.encode(frame, is_checked=is_checked) for frame in frames)
    claim(stream.startswith(again), "frames are encoded otherwise than they came")


def _up(random: Random) -> wire.UpFrame:
    return random.choice(
        (
            wire.Handshake(random.randrange(9), random.random() < 0.5, random.random() < 0.5),
            wire.Ack(random.getrandbits(40)),
            wire.Hello(3, random.getrandbits(40), random.choice(("g", "äö", ""))),
            wire.Bound(HaBinding(3, 1, 9), 2, 900, 800, 850, HaStanding.FULL, 7),
            wire.ImageRequest(),
        )
    )


def _down(random: Random) -> wire.DownFrame:
    epochs = tuple(EpochStart(n, 10 * n) for n in range(1, random.randint(1, 4)))
    return random.choice(
        (
            wire.HandshakeReply(500, 3, epochs),
            wire.Transfer(100, 3, 50, 80, random.randbytes(random.choice((0, 30)))),
            wire.Bind(HaBinding(4, 1, random.getrandbits(60)), random.choice(list(AckMode))),
            wire.Admit(4, random.getrandbits(40)),
            wire.ImagePiece(40, 10, random.randbytes(12)),
        )
    )


def _examples(random: Random) -> list[bytes]:
    found = []
    for mode in range(4):
        make = _down if mode & 1 else _up
        frames = [make(random) for _ in range(random.randint(1, 4))]
        stream = b"".join(wire.encode(frame, is_checked=bool(mode & 2)) for frame in frames)
        found.append(bytes((mode,)) + stream)
    return found


def _crc(data: bytearray) -> bytes:
    return crc32c(bytes(data)).to_bytes(4, "big")


def _repaired(data: bytes) -> bytes:
    """Put the checks right, as far as states and sizes allow."""
    if not data:
        return data
    is_down, is_checked = data[0] & 1, data[0] & 2
    out, at = bytearray(data), 1
    while at + 8 <= len(out):
        state, size = (int.from_bytes(out[i : i + 4], "big") for i in (at, at + 4))
        head = 8 if state >= 64 else _FIXED[is_down].get(state, 0)
        if not head or at + head > len(out):
            break
        body_at = at + head
        if is_checked:
            out[body_at : body_at + 4] = _crc(out[at:body_at])
            body_at += 4
        has_body = state >= 64 or bool(is_down)
        if not has_body:
            at = body_at
            continue
        end = body_at + size
        if end + 4 > len(out):
            break
        if state >= 64:
            out[end : end + 4] = _crc(out[at : at + 8] + out[body_at:end])
        elif is_checked:
            out[end : end + 4] = _crc(out[body_at:end])
        at = end + (4 if state >= 64 or is_checked else 0)
    return bytes(out)


TARGETS: Final = (
    FuzzTarget(
        "ha-link",
        "frames are refused by name, or encode to the bytes that came, however these were cut",
        _link,
        ("node.replication.ha.core.wire",),
        _examples,
        (wire.HaFrameError,),
        repaired=_repaired,
    ),
)
