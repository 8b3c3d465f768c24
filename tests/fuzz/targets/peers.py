"""Targets of the peer link: frames, the handshake, lives.

Strangers reach all of it but `peer-frames`, whose sender has proved that it is a peer.
"""

import zlib
from collections.abc import Iterator, Sequence
from random import Random
from typing import Final

from node.peers.frames import (
    FRAME_SIZE_BYTES_MAX,
    HANDSHAKE_KINDS,
    HANDSHAKE_SIZE_BYTES_MAX,
    EncodedFrame,
    FrameError,
    FrameKind,
    FrameParser,
)
from node.peers.handshake import (
    NONCE_SIZE_BYTES,
    CloseCode,
    HandshakeRefusedError,
    LinkIdentity,
    PeerInfo,
    check_hello,
    check_welcome,
    goodbye,
    hello,
    read_goodbye,
    welcome,
)
from node.peers.lives_codec import LivesFormatError, decode_lives, encode_lives
from quorumlog.pb import peer_pb2 as pb
from raft.lives import Known, ToldLife
from raft.messages import NO_INDEX, Standing
from tests.fuzz.structure import integer, mutated_message, text
from tests.fuzz.target import KIB, FuzzTarget, claim, same_again, same_however_cut

_BUFFER_SIZE_BYTES: Final = 4 * KIB
_PeerFrame = tuple[FrameKind, bytes, bytes]


def _run_frames(data: bytes, *, length_max: int, kinds: frozenset[FrameKind]) -> list[_PeerFrame]:
    def parse(pieces: Iterator[bytes], frames: list[_PeerFrame]) -> None:
        parser = FrameParser(
            length_max=length_max, kinds=kinds, buffer_size_bytes=_BUFFER_SIZE_BYTES
        )
        for piece in pieces:
            at = 0
            while at < len(piece):
                room = parser.buffer()
                count = min(len(room), len(piece) - at)
                claim(count > 0, "a buffer without room")
                room[:count] = piece[at : at + count]
                parser.filled(count)
                at += count
                while (found := parser.next_frame()) is not None:
                    frames.append((found[0], found[1], bytes(found[2])))
        claim(parser.buffer_size_bytes <= 2 * (length_max + _BUFFER_SIZE_BYTES), "a larger buffer")

    return same_however_cut(data, parse, (FrameError,))


def _encoded_again(frames: Sequence[_PeerFrame], data: bytes) -> None:
    """Claim that the frames of a known kind are exactly what our encoder writes."""
    for kind, header, payload in frames:
        encoded = EncodedFrame(kind, header, payload)
        claim(encoded.head + encoded.rest in data, f"a frame of {kind.name} is encoded otherwise")


def _peer_frames(data: bytes) -> None:
    kinds = frozenset(FrameKind)
    _encoded_again(_run_frames(data, length_max=FRAME_SIZE_BYTES_MAX, kinds=kinds), data)


def _stranger_frames(data: bytes) -> None:
    frames = _run_frames(data, length_max=HANDSHAKE_SIZE_BYTES_MAX, kinds=HANDSHAKE_KINDS)
    claim(all(kind in HANDSHAKE_KINDS for kind, _, _ in frames), "a kind of a known peer")
    _encoded_again(frames, data)


def _frame_examples(random: Random) -> list[bytes]:
    found = []
    for _ in range(4):
        stream = b""
        for _ in range(random.randint(1, 4)):
            kind = random.choice(list(FrameKind))
            header = random.randbytes(random.choice((0, 1, 8, 40, 130, 200)))
            frame = EncodedFrame(kind, header, random.randbytes(random.choice((0, 0, 3, 100))))
            stream += frame.head + frame.rest
        found.append(stream)
    return found


def _checked_frames(data: bytes) -> bytes:
    """Put the checksum of each frame right, as far as the sizes allow."""
    out, at = bytearray(data), 0
    while at + 12 <= len(out):
        length = int.from_bytes(out[at : at + 4], "big")
        crc_at = at + 4 + int.from_bytes(out[at + 5 : at + 8], "big")
        if crc_at + 4 > min(at + 4 + length, len(out)):
            break
        out[crc_at : crc_at + 4] = zlib.crc32(out[at:crc_at]).to_bytes(4, "big")
        at += 4 + length
    return bytes(out)


# The handshake.

_SECRET: Final = b"a secret of peers"
_OWN: Final = LinkIdentity("c", "g", 1, "1", "127.0.0.1:1", _SECRET, 1 << 20)
_PEER: Final = LinkIdentity("c", "g", 2, "1", "127.0.0.1:2", _SECRET, 1 << 20)
_STRANGER: Final = LinkIdentity("c", "g", 2, "1", "127.0.0.1:2", b"guessed", 1 << 20)
_NONCE: Final = bytes(range(NONCE_SIZE_BYTES))
_HELLO_NONCE: Final = 77
_PARTS: Final = ("challenge", "hello", "welcome", "goodbye")


def _handshake(data: bytes) -> None:
    """The first byte says which frame the rest is."""
    part, header = _PARTS[data[0] % 4] if data else _PARTS[0], data[1:]
    if part == "challenge":
        nonce, answer = hello(_OWN, header, to=2, last_index=5)
        claim(pb.Hello.FromString(answer).nonce == nonce, "another nonce in the Hello")
    elif part == "hello":
        info = check_hello(_OWN, header, challenge_nonce=_NONCE, peers=(2, 3))[1]
        _check_info(info, pb.Hello.FromString(header).auth)
    elif part == "welcome":
        info = check_welcome(_OWN, header, to=2, nonce=_HELLO_NONCE)
        _check_info(info, pb.Welcome.FromString(header).auth)
    else:
        code, said = read_goodbye(header)
        claim((code + said).isprintable() and len(code + said) <= 400, f"shown: {code!r} {said!r}")


_proofs: Final[set[bytes]] = set()
"""Proofs that the examples made with the secret."""


def _check_info(info: PeerInfo, proof: bytes) -> None:
    claim(info.address.isprintable(), "a text that cannot be printed")
    claim(info.last_index >= NO_INDEX, f"last index {info.last_index}")
    claim(proof in _proofs, "a peer without the secret was taken")


def _handshake_examples(random: Random) -> list[bytes]:
    lives = random.choice((b"", random.randbytes(20)))
    challenge = pb.Challenge(protocol=1, nonce=_NONCE).SerializeToString()
    found = [b"\0" + challenge]
    for identity in (_PEER, _STRANGER):
        said = hello(identity, challenge, to=1, last_index=random.randrange(9), lives=lives)[1]
        taken = welcome(identity, to=1, nonce=_HELLO_NONCE, last_index=4, lives=lives)
        if identity is _PEER:
            _proofs.update((pb.Hello.FromString(said).auth, pb.Welcome.FromString(taken).auth))
        found += [b"\1" + said, b"\2" + taken]
    return [*found, b"\3" + goodbye(random.choice(tuple(CloseCode)), text(random))]


_KINDS: Final = (pb.Challenge, pb.Hello, pb.Welcome, pb.Goodbye)


def _mutated_handshake(random: Random, data: bytes) -> bytes:
    if not data:
        return data
    return data[:1] + mutated_message(_KINDS[data[0] % 4])(random, data[1:])


# Lives.


def _lives_examples(random: Random) -> list[bytes]:
    def number() -> int:
        return abs(integer(random, bits=63, is_signed=False))

    own = ToldLife(
        number(), number(), 1, NO_INDEX, 2, 7, random.choice(list(Standing)), 3, 4, (number(), 5)
    )
    known = {n: Known(number(), number(), 1, 2, 1, NO_INDEX, 6) for n in range(1, 4)}
    return [encode_lives(own, known), encode_lives(own, {})]


TARGETS: Final = (
    FuzzTarget(
        "peer-frames",
        "frames of a peer are the same however the stream is cut, in bounded memory",
        _peer_frames,
        ("node.peers.frames",),
        _frame_examples,
        (FrameError,),
        repaired=_checked_frames,
        # A peer that has proved itself may announce the largest frame.
        memory_base_bytes=6 * FRAME_SIZE_BYTES_MAX,
    ),
    FuzzTarget(
        "peer-stranger-frames",
        "before the handshake no length makes a node allocate more than 4 KiB",
        _stranger_frames,
        ("node.peers.frames",),
        _frame_examples,
        (FrameError,),
        repaired=_checked_frames,
    ),
    FuzzTarget(
        "peer-handshake",
        "a handshake is refused with a code, and without the secret nothing is believed",
        _handshake,
        ("node.peers.handshake", "node.peers.security.proof"),
        _handshake_examples,
        (HandshakeRefusedError,),
        mutated=_mutated_handshake,
    ),
    FuzzTarget(
        "peer-lives",
        "lives are refused by name, or read the same after they are written again",
        same_again(decode_lives, lambda lives: encode_lives(*lives)),
        ("node.peers.lives_codec",),
        _lives_examples,
        (LivesFormatError,),
        mutated=mutated_message(pb.Lives),
    ),
)
