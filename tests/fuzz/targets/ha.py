"""Targets of master-slave mode: both directions of its link. The lowest bit says which."""

from collections.abc import Iterator
from random import Random
from typing import Any, Final

from node.replication.ha.core import wire
from node.replication.ha.core.types import AckMode, EpochStart, HaBinding, HaStanding
from store.files.checksum import crc32c
from tests.fuzz.target import FuzzTarget, claim, same_however_cut

_FIXED: Final = ({1: 16, 2: 12}, {1: 20, 2: 36})
"""Sizes of the heads of RocketMQ's states, by direction: up, down."""


def _link(data: bytes) -> None:
    if not data:
        return
    parser_of: Any = wire.DownParser if data[0] & 1 else wire.UpParser
    stream = data[1:]

    def parse(pieces: Iterator[bytes], frames: list[Any]) -> None:
        parser = parser_of()
        for piece in pieces:
            frames += parser.feed(piece)
            claim(parser.held_size_bytes <= len(stream), "more is held than has arrived")

    # Frames in front of a bad one are dropped with their link, so only good streams are compared.
    parse(iter((stream,)), [])
    frames = same_however_cut(stream, parse, (wire.HaFrameError,))
    again = b"".join(wire.encode(frame) for frame in frames)
    claim(stream.startswith(again), "frames are encoded otherwise than they came")


def _up(random: Random) -> wire.UpFrame:
    return random.choice(
        (
            wire.Handshake(random.randrange(9)),
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
    for mode, make in enumerate((_up, _down)):
        frames = [make(random) for _ in range(random.randint(1, 4))]
        found.append(bytes((mode,)) + b"".join(map(wire.encode, frames)))
    return found


def _crc(data: bytearray) -> bytes:
    return crc32c(bytes(data)).to_bytes(4, "big")


def _repaired(data: bytes) -> bytes:
    """Put the checks right, as far as states and sizes allow."""
    if not data:
        return data
    is_down = data[0] & 1
    out, at = bytearray(data), 1
    while at + 8 <= len(out):
        state, size = (int.from_bytes(out[i : i + 4], "big") for i in (at, at + 4))
        head = 8 if state >= 64 else _FIXED[is_down].get(state, 0)
        if not head or at + head > len(out):
            break
        body_at = at + head + 4
        out[body_at - 4 : body_at] = _crc(out[at : at + head])
        has_body = state >= 64 or bool(is_down)
        if not has_body:
            at = body_at
            continue
        end = body_at + size
        if end + 4 > len(out):
            break
        prefix = out[at : at + 8] if state >= 64 else bytearray()
        out[end : end + 4] = _crc(prefix + out[body_at:end])
        at = end + 4
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
