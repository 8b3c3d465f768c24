"""Raft messages on the wire: what is sent arrives, and what is no message is refused by name."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from google.protobuf.message import Message as Protobuf
from hypothesis import given, settings
from hypothesis import strategies as st

from node.peers.frames import FrameKind
from node.replication.raft import codec
from node.replication.raft.codec import (
    INCARNATION_MAX,
    INDEX_MAX,
    MEMBER_COUNT_MAX,
    RUN_COUNT_MAX,
    TERM_MAX,
    SnapshotHeader,
    SteadyDecoder,
    SteadyEncoder,
    decode,
    decode_install,
    encode,
    encode_install,
)
from quorumlog.pb import peer_pb2 as pb
from raft.errors import PeerProtocolError
from raft.messages import (
    NO_INDEX,
    AppendReply,
    AppendRequest,
    CampaignNow,
    Configuration,
    ConfigurationAt,
    InstallSnapshot,
    Message,
    Refusal,
    SnapshotMeta,
    Standing,
    TermRun,
    VoteReply,
    VoteRequest,
)
from tests.seeds import examples

_END = ("g", 2, 1)
_INDEXES = st.integers(0, 1 << 40) | st.integers(INDEX_MAX - 100, INDEX_MAX - 90)
_ROUNDS = st.integers(0, (1 << 64) - 1)
_NODES = st.integers(1, (1 << 32) - 1)


@st.composite
def _configurations(draw: st.DrawFn, index: st.SearchStrategy[int]) -> ConfigurationAt:
    members = draw(st.lists(_NODES, min_size=1, max_size=9, unique=True))
    voter_count = draw(st.integers(1, len(members)))
    voters, learners = sorted(members[:voter_count]), sorted(members[voter_count:])
    return ConfigurationAt(draw(index), Configuration(tuple(voters), tuple(learners)))


@st.composite
def _runs(draw: st.DrawFn, lo: int, hi: int, term: int) -> tuple[TermRun, ...]:
    if lo == hi:
        return ()
    firsts = sorted({lo, *draw(st.lists(st.integers(lo, hi - 1), max_size=5))})
    terms = sorted(draw(st.sets(st.integers(1, term), min_size=1, max_size=len(firsts))))
    return tuple(zip(firsts, terms, strict=False))


@st.composite
def _appends(draw: st.DrawFn) -> AppendRequest:
    lo = draw(_INDEXES)
    hi = lo + draw(st.integers(0, 50))
    term = draw(st.integers(1, TERM_MAX))
    runs = draw(_runs(lo, hi, term))
    prev_term = draw(st.integers(1, runs[0][1] if runs else term)) if lo else 0
    indexes = sorted(draw(st.sets(st.integers(lo, hi - 1), max_size=3))) if hi > lo else []
    configurations = [draw(_configurations(st.just(index))) for index in indexes]
    return AppendRequest(
        *_END,
        term,
        lo - 1,
        prev_term,
        hi,
        runs,
        draw(st.integers(NO_INDEX, 1 << 40)),
        draw(_ROUNDS),
        tuple(configurations),
        draw(_ROUNDS),
        draw(st.sampled_from([None, 0, 0xFFFFFFFF])),
    )


@st.composite
def _append_replies(draw: st.DrawFn) -> AppendReply:
    term = draw(st.integers(1, TERM_MAX))
    return AppendReply(
        *_END,
        term,
        draw(_INDEXES),
        draw(st.sampled_from([Refusal.NONE, Refusal.OLD_TERM, Refusal.NO_MATCH])),
        draw(_INDEXES),
        draw(_INDEXES),
        draw(_runs(7, 60, term)),
        draw(_ROUNDS),
        draw(st.sampled_from(Standing)),
        draw(st.integers(0, INCARNATION_MAX)),
    )


@st.composite
def _steady_appends(draw: st.DrawFn) -> AppendRequest:
    """Appends of a leader in office: entries of its own term behind one of that term."""
    message, lo = draw(_appends()), draw(st.integers(1, INDEX_MAX - 60))
    return message._replace(
        prev_index=lo - 1,
        prev_term=message.term,
        hi=lo + draw(st.integers(1, 50)),
        runs=((lo, message.term),),
        configurations=(),
    )


_ACKS = st.builds(
    AppendReply,
    *map(st.just, _END),
    st.integers(1, TERM_MAX),
    st.integers(NO_INDEX, INDEX_MAX),
    st.just(Refusal.NONE),
    st.just(NO_INDEX),
    st.just(NO_INDEX),
    st.just(()),
    _ROUNDS,
    st.sampled_from(Standing),
    st.integers(0, INCARNATION_MAX),
)


def _decode(kind: FrameKind, header: bytes) -> Message:
    return decode(kind, header, group="g", sender=2, to=1)


_META = SnapshotMeta(INDEX_MAX, 4, ConfigurationAt(NO_INDEX, Configuration((1, 3), (2,))))


@pytest.mark.parametrize(
    "message",
    [
        VoteRequest(*_END, TERM_MAX - 1, TERM_MAX, INDEX_MAX, 7, True, False, False),
        VoteRequest(*_END, 7, 7, NO_INDEX, 0, False, True, False),
        VoteRequest(*_END, 7, 7, 9, 6, False, False, True),
        VoteReply(*_END, 0, TERM_MAX, True, True, False, Refusal.NONE, 0),
        *(VoteReply(*_END, 7, 8, False, False, True, refusal, 3) for refusal in [*Refusal][1:]),
        InstallSnapshot(*_END, 5, _META, (1 << 64) - 1),
        CampaignNow(*_END, TERM_MAX),
    ],
)
def test_decoding_inverts_encoding(message: Message) -> None:
    assert _decode(*encode(message)) == message


@given(st.lists(_appends() | _steady_appends() | _append_replies() | _ACKS, max_size=12))
def test_appends_and_replies_arrive_as_they_were_and_the_steady_encoder_gives_the_same_bytes(
    messages: list[Message],
) -> None:
    encoder = SteadyEncoder()
    for message in [each for each in messages for _ in range(2)]:
        assert _decode(*encode(message)) == message
        if isinstance(message, AppendRequest):
            other = message._replace(to=9, sender=8)
            assert encoder.append(message) == encode(message)[1]
            assert encoder.append(other) is encoder.append(message), "made once for all peers"
        else:
            assert isinstance(message, AppendReply)
            assert encoder.reply(message) == encode(message)[1]


_USUAL = AppendReply(
    *_END, 5, 9, Refusal.NONE, NO_INDEX, NO_INDEX, (), 7, Standing.FULL, INCARNATION_MAX
)


@pytest.mark.parametrize(
    "message",
    [
        *(_USUAL._replace(standing=standing) for standing in Standing),
        _USUAL._replace(refusal=Refusal.OLD_TERM),
        _USUAL._replace(refusal=Refusal.NO_MATCH),
        _USUAL._replace(refused_prev=4),
        _USUAL._replace(hint_last=4),
        _USUAL._replace(refused_prev=4, hint_last=4),
        _USUAL._replace(hint_runs=((2, 1),)),
    ],
)
def test_a_reply_with_one_field_that_is_not_usual_arrives_as_it_was(message: AppendReply) -> None:
    kind, header = encode(message)
    assert _decode(kind, header) == message
    encoder = SteadyEncoder()
    encoder.reply(_USUAL)
    assert encoder.reply(message) == header


def _outcome(decoder: Callable[[], Message]) -> Message | str:
    """Return what a decoder makes of a header: a message, or the error's text."""
    try:
        return decoder()
    except (PeerProtocolError, codec._FieldError) as error:
        return str(error)


_SMALL = st.sampled_from([0, 1, 2, 3, 4, 5])
_ODD = _SMALL | st.sampled_from([INDEX_MAX, INDEX_MAX + 1, INDEX_MAX + 2, TERM_MAX])
_INDEX = _ODD | st.sampled_from([-1, -2])
_TERM = _ODD | st.just(TERM_MAX + 1)


_TERM_RUN = st.builds(pb.TermRun, index=_INDEX, term=_TERM)


@given(
    st.builds(
        pb.AppendEntries,
        term=_TERM,
        prev_index=_INDEX,
        prev_term=_TERM,
        hi=_INDEX,
        runs=st.lists(_TERM_RUN, max_size=2),
        commit=_INDEX,
        round=_SMALL,
        admitted=_SMALL,
        prev_chain_crc=st.none() | _SMALL,
    ),
    st.builds(
        pb.AppendReply,
        term=_TERM,
        match=_INDEX,
        refusal=_SMALL,
        refused_prev=_INDEX,
        hint_last=_INDEX,
        hint_runs=st.lists(_TERM_RUN, max_size=1),
        round=_SMALL,
        standing=_SMALL,
        incarnation=_SMALL | st.just(INCARNATION_MAX) | st.just(INCARNATION_MAX + 1),
        diverged=st.booleans(),
    ),
)
@settings(max_examples=examples(200))
def test_the_short_decoders_agree_with_the_general_ones(
    append: pb.AppendEntries, reply: pb.AppendReply
) -> None:
    for message, short, general in (
        (append, codec._decode_append, codec._decode_any_append),
        (reply, codec._decode_append_reply, codec._decode_any_reply),
    ):
        expected = _outcome(partial(general, message, "g", 2, 1))  # type: ignore[arg-type]
        outcome = _outcome(partial(short, message.SerializeToString(), "g", 2, 1))
        assert (type(outcome), outcome) == (type(expected), expected)


@pytest.mark.parametrize("term", [1, 5, TERM_MAX])
def test_the_short_decoder_takes_what_a_leader_in_office_sends(
    term: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(codec, "_decode_any_append")
    run = pb.TermRun(index=1, term=term)
    header = pb.AppendEntries(term=term, prev_term=term, hi=2, runs=[run], commit=-1)
    codec._decode_append(header.SerializeToString(), "g", 2, 1)


@st.composite
def _headers_like_acks(draw: st.DrawFn) -> list[tuple[int, bytes]]:
    """Headers of two senders in a row: acks, the same with other matches, and damaged ones."""
    headers: list[tuple[int, bytes]] = []
    ack = draw(_ACKS)
    for _ in range(draw(st.integers(2, 8))):
        if draw(st.integers(0, 5)) == 0:
            ack = draw(_ACKS | _append_replies())
        step = draw(st.integers(0, 300) | st.integers(0, 1 << 58))
        header = bytearray(encode(ack._replace(match=step))[1])
        for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
            header[draw(st.integers(0, min(len(header) - 1, 12)))] = draw(st.integers(0, 255))
        header += draw(st.sampled_from([b"", b"", b"", b"\x10\x07", b"\xf8\x07\x01"]))
        headers.append((draw(st.sampled_from([2, 2, 3])), bytes(header)))
    return headers


@given(_headers_like_acks())
@settings(max_examples=examples(200))
def test_the_steady_decoder_agrees_with_the_general_one(headers: list[tuple[int, bytes]]) -> None:
    decoder, kind = SteadyDecoder("g", 1), FrameKind.APPEND_REPLY
    for sender, header in headers:
        ends: dict[str, Any] = {"group": "g", "sender": sender, "to": 1}
        steady = _outcome(partial(decoder.decode, kind, header, sender))
        general = _outcome(partial(decode, kind, header, **ends))
        assert steady == general
        assert type(steady) is type(general)


def test_the_steady_decoder_refuses_a_frame_that_is_no_message() -> None:
    with pytest.raises(PeerProtocolError, match="no Raft message"):
        SteadyDecoder("g", 1).decode(FrameKind.PING, b"", 2)


def _ack(match: int, **changes: Any) -> bytes:
    usual = AppendReply(
        "g", 2, 1, 300, match, Refusal.NONE, NO_INDEX, NO_INDEX, (), 7, Standing.FULL, 1 << 35
    )
    return encode(usual._replace(**changes))[1]


def test_the_steady_decoder_parses_only_what_differs_in_more_than_the_match(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decoder, kind = SteadyDecoder("g", 1), FrameKind.APPEND_REPLY
    decoder.decode(kind, _ack(20_000), 2)
    general: list[bytes] = []

    def parsed(header: bytes, *_: object) -> Message:
        general.append(header)
        return AppendReply(
            "g", 2, 1, 1, 1, Refusal.NO_MATCH, NO_INDEX, NO_INDEX, (), 0, Standing.FULL, 0
        )

    monkeypatch.setitem(codec._DECODERS, kind, parsed)
    for match in (20_000, 20_001, 16_384, 2_097_151):
        assert decoder.decode(kind, _ack(match), 2).match == match  # type: ignore[union-attr]
    assert general == []
    others = [_ack(16_383), _ack(2_097_152), _ack(20_000, round=8), _ack(20_000, term=301)]
    others += [_ack(20_000, incarnation=9), _ack(20_000) + b"\x10\x07", b""]
    others += [_ack(20_000).replace(b"\xa0\x9c\x01", b"\xa0\x9c\x80")]  # It goes on behind.
    for header in others:
        decoder.decode(kind, header, 2)
    decoder.decode(kind, _ack(20_000), 3)
    assert general == [*others, _ack(20_000)]


@pytest.mark.parametrize(
    "header",
    [
        _ack(20_000) + b"\x10\x07",
        b"\x10\x07" + _ack(20_000),
        _ack(20_000, refusal=Refusal.NO_MATCH),
        _ack(20_000, standing=Standing.JOINING),
        _ack(1 << 56),
        _ack(0),
        _ack(20_000) + b"\xfa\x07\x40" + bytes(64),
    ],
)
def test_an_ack_of_another_shape_is_parsed_each_time(header: bytes) -> None:
    decoder = SteadyDecoder("g", 1)
    for _ in range(2):
        decoder.decode(FrameKind.APPEND_REPLY, header, 2)
    assert not decoder._acks


def test_a_reply_that_only_says_diverged_is_no_ack() -> None:
    """All else in it is what an ack says."""
    header = pb.AppendReply(
        term=5, match=9, refused_prev=NO_INDEX, hint_last=NO_INDEX, diverged=True
    )
    message = _decode(FrameKind.APPEND_REPLY, header.SerializeToString())
    assert isinstance(message, AppendReply)
    assert message.standing is Standing.DIVERGED


def test_the_connection_says_group_sender_and_receiver() -> None:
    kind, header = encode(CampaignNow("other", 7, 8, 3))
    assert decode(kind, header, group="g", sender=2, to=1) == CampaignNow("g", 2, 1, 3)


def test_fields_of_a_later_version_are_ignored() -> None:
    kind, header = encode(CampaignNow(*_END, 3))
    later = header + bytes([0xF8, 0x07, 0x05])  # Field 127, a number.
    assert _decode(kind, later) == CampaignNow(*_END, 3)


def test_a_snapshot_announces_its_state() -> None:
    at = ConfigurationAt(3, Configuration((1, 2, 3)))
    message = InstallSnapshot(*_END, 5, SnapshotMeta(9, 4, at), 77)
    header = encode_install(message, size_bytes=1 << 40, crc=0xFFFFFFFF)
    snapshot_header = decode_install(header, group="g", sender=2, to=1)
    assert snapshot_header == SnapshotHeader(message, 1 << 40, 0xFFFFFFFF)


def _append(**fields: Any) -> pb.AppendEntries:
    usual: dict[str, Any] = {
        "term": 5,
        "prev_index": 9,
        "prev_term": 4,
        "hi": 12,
        "runs": [pb.TermRun(index=10, term=5)],
    }
    return pb.AppendEntries(**(usual | fields))


def _members(voters: list[int], learners: list[int], index: int = 10) -> pb.ConfigurationAt:
    configuration = pb.Configuration(voters=voters, learners=learners)
    return pb.ConfigurationAt(index=index, configuration=configuration)


def _reply(**fields: Any) -> pb.AppendReply:
    return pb.AppendReply(**({"term": 5, "refused_prev": -1, "hint_last": -1} | fields))


def _snapshot(**fields: Any) -> pb.InstallSnapshot:
    usual: dict[str, Any] = {"index": 10, "term": 4, "configuration_at": _members([1], [])}
    return pb.InstallSnapshot(term=5, meta=pb.SnapshotMeta(**(usual | fields)))


def _vote(**fields: Any) -> pb.VoteRequest:
    return pb.VoteRequest(**({"term": 5, "vote_term": 5, "last_index": -1} | fields))


_A, _R, _Q = FrameKind.APPEND, FrameKind.APPEND_REPLY, FrameKind.VOTE_REQUEST
_P, _I = FrameKind.VOTE_REPLY, FrameKind.INSTALL_SNAPSHOT
_MANY = list(range(1, MEMBER_COUNT_MAX + 2))
_MANY_RUNS = [pb.TermRun(index=i, term=i + 1) for i in range(RUN_COUNT_MAX + 1)]
_SAME_TERM = [pb.TermRun(index=5, term=2), pb.TermRun(index=6, term=2)]
_SAME_INDEX = [pb.TermRun(index=6, term=1), pb.TermRun(index=6, term=2)]
_BAD: list[tuple[str, FrameKind, Protobuf, str]] = [
    ("term 0", _A, _append(term=0), "term 0, not within 1"),
    ("huge term", _A, _append(term=1 << 63), "term 9223372036854775808"),
    ("prev_index", _A, _append(prev_index=-2), "prev_index is -2"),
    ("backwards", _A, _append(hi=9), r"append of \[10, 9\)"),
    ("no runs", _A, _append(runs=[]), "do not cover"),
    ("runs elsewhere", _A, _append(runs=[pb.TermRun(index=11, term=5)]), "do not cover"),
    ("run term 0", _A, _append(runs=[pb.TermRun(index=10)]), r"term run \(10, 0\)"),
    ("later than term", _A, _append(term=4), "entry of term 5 in term 4"),
    ("commit", _A, _append(commit=-2), "commit is -2"),
    ("no term before", _A, _append(prev_term=0), "term 0 before index 10"),
    ("term before nothing", _A, _append(prev_index=-1, hi=0, runs=[]), "term 4 before index 0"),
    ("outside", _A, _append(configurations=[_members([1], [], 12)]), "configuration at 12"),
    ("twice", _A, _append(configurations=[_members([1], [])] * 2), "configuration at 10"),
    ("nobody", _A, _append(configurations=[_members([], [2])]), "configuration of voters"),
    ("node 0", _A, _append(configurations=[_members([0, 1], [])]), "configuration of voters"),
    ("unsorted", _A, _append(configurations=[_members([2, 1], [])]), "configuration of voters"),
    ("both", _A, _append(configurations=[_members([1], [1])]), "configuration of voters"),
    ("too many", _A, _append(configurations=[_members(_MANY, [])]), "configuration of voters"),
    ("match", _R, _reply(match=-2), "match is -2"),
    ("huge match", _R, _reply(match=INDEX_MAX + 1), "match is 1152921504606846977, not within"),
    ("huge hint", _R, _reply(hint_last=(1 << 63) - 1), "hint_last is 9223372036854775807"),
    ("huge commit", _A, _append(commit=INDEX_MAX + 1), "commit is"),
    ("huge prev_index", _A, _append(prev_index=(1 << 63) - 1), "prev_index is"),
    ("huge hi", _A, _append(prev_index=INDEX_MAX, hi=INDEX_MAX + 1), "hi is"),
    ("incarnation", _R, _reply(incarnation=INCARNATION_MAX + 1), "incarnation 1099511627777"),
    ("huge last index", _Q, _vote(last_index=INDEX_MAX + 1, last_term=5), "last_index is"),
    ("huge snapshot index", _I, _snapshot(index=INDEX_MAX + 1), "index is 1152921504606846977"),
    ("refusal", _R, _reply(refusal=Refusal.OLD_LOG), "refusal 3"),
    ("unknown refusal", _R, _reply(refusal=99), "refusal 99"),
    ("standing", _R, _reply(standing=3), "standing 3"),
    ("hint order", _R, _reply(hint_runs=_SAME_TERM), r"term run \(6, 2\) after \(5, 2\)"),
    ("hint index order", _R, _reply(hint_runs=_SAME_INDEX), r"term run \(6, 2\) after \(6, 1\)"),
    ("many hints", _R, _reply(hint_runs=_MANY_RUNS), "4097 term runs"),
    ("vote of another term", _Q, _vote(vote_term=6), "vote for"),
    ("pre-vote", _Q, _vote(pre=True), "pre-vote"),
    ("no last term", _Q, _vote(last_index=3), "last entry 3"),
    ("last term", _Q, _vote(last_index=3, last_term=6), "last entry 3 of term 6"),
    ("granted", _P, pb.VoteReply(term=5, vote_term=5, granted=True, refusal=1), "granted True"),
    ("refused", _P, pb.VoteReply(term=5, vote_term=5), "granted False with refusal 0"),
    ("unknown reason", _P, pb.VoteReply(term=5, vote_term=5, refusal=99), "refusal 99"),
    ("no meta", _I, pb.InstallSnapshot(term=5), "no meta"),
    ("snapshot term", _I, _snapshot(term=6), "snapshot of term 6"),
    ("snapshot index", _I, _snapshot(index=-1), "index is -1"),
    ("later members", _I, _snapshot(index=9), "configuration of 10 at 9"),
    ("campaign", FrameKind.CAMPAIGN_NOW, pb.CampaignNow(), "term 0"),
    ("no raft", FrameKind.PING, pb.CampaignNow(term=1), "no Raft message"),
]


@pytest.mark.parametrize(
    ("kind", "header", "text"), [case[1:] for case in _BAD], ids=[case[0] for case in _BAD]
)
def test_an_impossible_field_is_refused_by_name(
    kind: FrameKind, header: Protobuf, text: str
) -> None:
    with pytest.raises(PeerProtocolError, match=text):
        _decode(kind, header.SerializeToString())


def test_the_cases_above_differ_from_good_ones() -> None:
    _decode(_A, _append(configurations=[_members([1, 2], [3])]).SerializeToString())
    _decode(_R, _reply().SerializeToString())
    last_run = pb.TermRun(index=INDEX_MAX, term=TERM_MAX)
    _decode(_R, _reply(term=TERM_MAX, hint_runs=[last_run]).SerializeToString())
    _decode(_I, _snapshot().SerializeToString())
