"""Raft messages to protobuf headers and back; headers that cannot be a Raft message are refused.

Owns the mapping of the six messages and the ranges of their fields. `group`, `sender` and `to` are
not on the wire: they belong to the connection, whose handshake proved them. The core checks what
depends on the state of the receiver. Neither frames nor sockets are known here.
"""

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from node.peers.frames import FrameKind
from quorumlog.pb import peer_pb2 as pb
from raft.core import check_append
from raft.errors import PeerProtocolError
from raft.messages import (
    NO_INDEX,
    NO_NODE,
    AppendReply,
    AppendRequest,
    CampaignNow,
    Configuration,
    ConfigurationAt,
    Index,
    InstallSnapshot,
    Message,
    NodeId,
    Refusal,
    SnapshotMeta,
    Standing,
    Term,
    TermRun,
    VoteReply,
    VoteRequest,
)

TERM_MAX: Final = (1 << 63) - 1
"""Terms are stored as signed 64-bit integers. The core refuses far lower ones (raft.ceiling)."""
INDEX_MAX: Final = 1 << 60
"""Ten million entries a second for 3,600 years. A log that begins here because of a snapshot still
has seven times as much left before 64 bits end."""
INCARNATION_MAX: Final = 1 << 40
"""A clock in seconds when a node joined, and one more for each power loss. A leader that believed a
higher one would ignore the node itself."""
RUN_COUNT_MAX: Final = 4096
"""Term runs in one message; senders stay far below (RaftConfig.message_run_count_max)."""
MEMBER_COUNT_MAX: Final = 256
"""Voters and learners of one configuration."""

_MATCH_TAG: Final = b"\x10"
_LEARNT_MATCH_MAX: Final = (1 << 56) - 1
"""Below INDEX_MAX, as are all numbers of the same width."""
_LEARNT_SIZE_BYTES_MAX: Final = 64
"""An ack takes 50 bytes at most, and more with fields that a later version may add."""

_REFUSALS: Final = {int(refusal): refusal for refusal in Refusal}
_APPEND_REFUSALS: Final = {
    int(refusal): refusal for refusal in (Refusal.NONE, Refusal.OLD_TERM, Refusal.NO_MATCH)
}
_STANDINGS: Final = {
    int(standing): standing for standing in Standing if standing is not Standing.DIVERGED
}
"""By number. DIVERGED is a field of its own."""


class SnapshotHeader(NamedTuple):
    """An InstallSnapshot with the fields that the transfer adds."""

    message: InstallSnapshot
    size_bytes: int
    crc: int


def encode(message: Message) -> tuple[FrameKind, bytes]:
    """Return the frame type and the protobuf header of a message.

    To send an InstallSnapshot, use `encode_install`.
    """
    match message:
        case AppendRequest():
            return FrameKind.APPEND, _encode_append(message)
        case AppendReply():
            return FrameKind.APPEND_REPLY, _encode_append_reply(message)
        case VoteRequest():
            return FrameKind.VOTE_REQUEST, pb.VoteRequest(
                term=message.term,
                vote_term=message.vote_term,
                last_index=message.last_index,
                last_term=message.last_term,
                pre=message.pre,
                transfer=message.transfer,
                recovery=message.recovery,
            ).SerializeToString()
        case VoteReply():
            is_conflict = message.refusal is Refusal.HISTORY_CONFLICT
            return FrameKind.VOTE_REPLY, pb.VoteReply(
                term=message.term,
                vote_term=message.vote_term,
                granted=message.granted,
                pre=message.pre,
                recovery=message.recovery,
                refusal=Refusal.NO_STANDING if is_conflict else message.refusal,
                leader=message.leader,
                diverged=is_conflict,
            ).SerializeToString()
        case InstallSnapshot():
            return FrameKind.INSTALL_SNAPSHOT, encode_install(message, size_bytes=0, crc=0)
        case CampaignNow():
            return FrameKind.CAMPAIGN_NOW, pb.CampaignNow(term=message.term).SerializeToString()


def decode(kind: FrameKind, header: bytes, *, group: str, sender: NodeId, to: NodeId) -> Message:
    """Return the message of a frame from `sender`. Raises PeerProtocolError."""
    if kind not in _DECODERS:
        raise PeerProtocolError(sender, f"a frame of type {kind!s} is no Raft message")
    try:
        return _DECODERS[kind](header, group, sender, to)
    except DecodeError as error:
        raise PeerProtocolError(sender, f"header of a {kind.name}: {error}") from error
    except _FieldError as error:
        raise PeerProtocolError(sender, f"{kind.name}: {error}") from None


def encode_install(message: InstallSnapshot, *, size_bytes: int, crc: int) -> bytes:
    """Return the header that announces `size_bytes` of state with this CRC-32C."""
    index, term, configuration_at = message.meta
    return pb.InstallSnapshot(
        term=message.term,
        meta=pb.SnapshotMeta(
            index=index, term=term, configuration_at=_configuration_at_pb(configuration_at)
        ),
        round=message.round,
        size_bytes=size_bytes,
        crc=crc,
    ).SerializeToString()


def decode_install(header: bytes, *, group: str, sender: NodeId, to: NodeId) -> SnapshotHeader:
    """Return the message, and size and CRC of the state. Raises PeerProtocolError."""
    message = decode(FrameKind.INSTALL_SNAPSHOT, header, group=group, sender=sender, to=to)
    assert isinstance(message, InstallSnapshot)
    decoded = pb.InstallSnapshot.FromString(header)
    return SnapshotHeader(message, decoded.size_bytes, decoded.crc)


# --- Encoding ---


class SteadyEncoder:
    """Encodes appends and their acks, of which hardly more than a number changes from one to the
    next.

    The bytes are those of `encode`. It fills in the same protobuf messages again instead of making
    new ones, and makes the header of an append once for all peers that get the same. For one
    thread.
    """

    def __init__(self) -> None:
        self._append = pb.AppendEntries()
        self._run = self._append.runs.add()
        self._reply = pb.AppendReply(refused_prev=NO_INDEX, hint_last=NO_INDEX)
        self._fields: tuple[object, ...] = ()
        """The append encoded last, without group, sender and receiver."""
        self._header = b""

    def append(self, message: AppendRequest) -> bytes:
        """Return the header of an append; equal ones in a row get the same object."""
        fields = message[3:]
        if fields == self._fields:
            return self._header
        runs = message.runs
        if not runs or runs[1:] or message.configurations or message.prev_chain is not None:
            self._header = _encode_append(message)
        else:
            kept, run = self._append, self._run
            kept.term, kept.prev_index = message.term, message.prev_index
            kept.prev_term, kept.hi = message.prev_term, message.hi
            run.index, run.term = runs[0]
            kept.commit, kept.round = message.commit, message.round
            kept.admitted = message.admitted
            self._header = kept.SerializeToString()
        self._fields = fields
        return self._header

    def reply(self, message: AppendReply) -> bytes:
        """Return the header of an ack or a refusal."""
        if (
            message.refusal is not Refusal.NONE
            or message.standing is Standing.DIVERGED
            or not message.refused_prev == message.hint_last == NO_INDEX
            or message.hint_runs
        ):
            return _encode_append_reply(message)
        kept_reply = self._reply
        kept_reply.term, kept_reply.match, kept_reply.round = (
            message.term,
            message.match,
            message.round,
        )
        kept_reply.standing, kept_reply.incarnation = message.standing, message.incarnation
        return kept_reply.SerializeToString()


def _encode_append(message: AppendRequest) -> bytes:
    runs = message.runs
    configurations = message.configurations
    return pb.AppendEntries(
        term=message.term,
        prev_index=message.prev_index,
        prev_term=message.prev_term,
        hi=message.hi,
        runs=[pb.TermRun(index=index, term=term) for index, term in runs] if runs else None,
        commit=message.commit,
        round=message.round,
        configurations=[_configuration_at_pb(at) for at in configurations]
        if configurations
        else None,
        admitted=message.admitted,
        prev_chain_crc=message.prev_chain,
    ).SerializeToString()


def _encode_append_reply(message: AppendReply) -> bytes:
    runs = message.hint_runs
    is_diverged = message.standing is Standing.DIVERGED
    return pb.AppendReply(
        term=message.term,
        match=message.match,
        refusal=message.refusal,
        refused_prev=message.refused_prev,
        hint_last=message.hint_last,
        hint_runs=[pb.TermRun(index=index, term=term) for index, term in runs] if runs else None,
        round=message.round,
        standing=Standing.JOINING if is_diverged else message.standing,
        incarnation=message.incarnation,
        diverged=is_diverged,
    ).SerializeToString()


def _configuration_at_pb(at: ConfigurationAt) -> pb.ConfigurationAt:
    index, (voters, learners) = at
    return pb.ConfigurationAt(
        index=index, configuration=pb.Configuration(voters=voters, learners=learners)
    )


# --- Decoding ---


class _Ack:
    """The ack decoded last from one peer, as the bytes and fields around its match."""

    __slots__ = ("after", "before", "hi", "lo", "prefix", "shift", "suffix")

    def __init__(self, header: bytes, message: AppendReply) -> None:
        """`header` is the only encoding of `message`, by field number."""
        self.prefix = pb.AppendReply(term=message.term).SerializeToString() + _MATCH_TAG
        self.lo = hi = len(self.prefix)
        while header[hi] >= 128:
            hi += 1
        self.hi = hi + 1
        self.suffix = header[self.hi :]
        self.shift = 7 * (self.hi - self.lo)
        """Bits of a match of this width."""
        self.before, self.after = message[:4], message[5:]


class SteadyDecoder:
    """Decodes the messages to one node, most of which are acks that differ from the last one of
    their sender in nothing but their match.

    The result is that of `decode`. Holds one short ack for each peer. For one thread.
    """

    def __init__(self, group: str, to: NodeId) -> None:
        self._group, self._to = group, to
        self._acks: dict[NodeId, _Ack] = {}

    def decode(self, kind: FrameKind, header: bytes, sender: NodeId) -> Message:
        """Return the message of a frame from `sender`. Raises PeerProtocolError."""
        if kind is FrameKind.APPEND_REPLY and sender in self._acks:
            ack = self._acks[sender]
            lo, hi = ack.lo, ack.hi
            if header[:lo] == ack.prefix and header[hi:] == ack.suffix:
                match = shift = 0
                byte = 128
                for byte in header[lo:hi]:
                    match |= (byte & 127) << shift
                    shift += 7
                    if byte < 128:
                        break
                if shift == ack.shift and byte < 128:
                    return tuple.__new__(AppendReply, (*ack.before, match, *ack.after))
        try:
            message = _DECODERS[kind](header, self._group, sender, self._to)
        except (KeyError, DecodeError, _FieldError):  # `decode` fails the same way, and says why.
            return decode(kind, header, group=self._group, sender=sender, to=self._to)
        if type(message) is AppendReply:
            self._learn(header, message, sender)
        return message

    def _learn(self, header: bytes, message: AppendReply, sender: NodeId) -> None:
        """Keep an ack, if the place of its match is certain: encoded again it is the same."""
        if (
            0 < message.match <= _LEARNT_MATCH_MAX
            and message.refusal is Refusal.NONE
            and message.standing is Standing.FULL
            and len(header) <= _LEARNT_SIZE_BYTES_MAX
            and header == _encode_append_reply(message)
        ):
            self._acks[sender] = _Ack(header, message)


class _FieldError(Exception):
    """A field out of its range. Becomes a PeerProtocolError before it leaves this module."""


def _decode_append(header: bytes, group: str, sender: NodeId, to: NodeId) -> AppendRequest:
    message = pb.AppendEntries.FromString(header)
    # Mostly entries of one term, the current one, that follow one of that term.
    term, prev_index, hi, commit = message.term, message.prev_index, message.hi, message.commit
    if (
        not 0 < message.prev_term == term <= TERM_MAX
        or not 0 <= prev_index < hi - 1 < INDEX_MAX
        or not NO_INDEX <= commit <= INDEX_MAX
        or message.configurations
        or message.HasField("prev_chain_crc")
    ):
        return _decode_any_append(message, group, sender, to)
    try:
        (run,) = message.runs
    except ValueError:  # None, or several.
        return _decode_any_append(message, group, sender, to)
    if run.index != prev_index + 1 or run.term != term:
        return _decode_any_append(message, group, sender, to)
    fields = (
        group,
        sender,
        to,
        term,
        prev_index,
        term,
        hi,
        ((prev_index + 1, term),),
        commit,
        message.round,
        (),
        message.admitted,
        None,
    )
    return tuple.__new__(AppendRequest, fields)


def _decode_any_append(
    append: pb.AppendEntries, group: str, sender: NodeId, to: NodeId
) -> AppendRequest:
    """Return an append. Raises _FieldError or PeerProtocolError."""
    lo, hi = append.prev_index + 1, append.hi
    message = AppendRequest(
        group,
        sender,
        to,
        _term(append.term, at_least=1),
        _index("prev_index", append.prev_index),
        _term(append.prev_term),
        _index("hi", hi),
        _runs(append.runs) if append.runs else (),
        _index("commit", append.commit),
        append.round,
        tuple(map(_configuration_at, append.configurations)) if append.configurations else (),
        append.admitted,
        append.prev_chain_crc if append.HasField("prev_chain_crc") else None,
    )
    if (message.prev_index == NO_INDEX) != (message.prev_term == 0):
        raise _FieldError(f"term {message.prev_term} before index {lo}")
    previous = lo - 1
    for at in message.configurations:
        if not previous < at.index < hi:
            raise _FieldError(f"configuration at {at.index} in entries [{lo}, {hi})")
        previous = at.index
    check_append(message)
    return message


def _decode_append_reply(header: bytes, group: str, sender: NodeId, to: NodeId) -> AppendReply:
    message = pb.AppendReply.FromString(header)
    match, incarnation = message.match, message.incarnation
    if (
        not 1 <= message.term <= TERM_MAX
        or not NO_INDEX <= match <= INDEX_MAX
        or not message.refused_prev == message.hint_last == NO_INDEX
        or incarnation > INCARNATION_MAX
        or message.refusal
        or message.standing
        or message.diverged
        or message.hint_runs
    ):
        return _decode_any_reply(message, group, sender, to)
    fields = (
        group,
        sender,
        to,
        message.term,
        match,
        Refusal.NONE,
        NO_INDEX,
        NO_INDEX,
        (),
        message.round,
        Standing.FULL,
        incarnation,
    )
    return tuple.__new__(AppendReply, fields)


def _decode_any_reply(reply: pb.AppendReply, group: str, sender: NodeId, to: NodeId) -> AppendReply:
    """Return a reply. Raises _FieldError."""
    refusal = _APPEND_REFUSALS.get(reply.refusal)
    standing = _STANDINGS.get(reply.standing)
    if refusal is None:
        raise _FieldError(f"refusal {reply.refusal}")
    if standing is None:
        raise _FieldError(f"standing {reply.standing}")
    return AppendReply(
        group,
        sender,
        to,
        _term(reply.term, at_least=1),
        _index("match", reply.match),
        refusal,
        _index("refused_prev", reply.refused_prev),
        _index("hint_last", reply.hint_last),
        _runs(reply.hint_runs) if reply.hint_runs else (),
        reply.round,
        Standing.DIVERGED if reply.diverged else standing,
        _incarnation(reply.incarnation),
    )


def _decode_vote_request(header: bytes, group: str, sender: NodeId, to: NodeId) -> VoteRequest:
    message = pb.VoteRequest.FromString(header)
    term, vote_term = _term(message.term), _term(message.vote_term, at_least=1)
    if vote_term != (term + 1 if message.pre else term):
        raise _FieldError(f"vote for term {vote_term} in term {term}, pre-vote: {message.pre}")
    last_index, last_term = _index("last_index", message.last_index), _term(message.last_term)
    if last_term > term or (last_index == NO_INDEX) != (last_term == 0):
        raise _FieldError(f"last entry {last_index} of term {last_term} in term {term}")
    return VoteRequest(
        group,
        sender,
        to,
        term,
        vote_term,
        last_index,
        last_term,
        message.pre,
        message.transfer,
        message.recovery,
    )


def _decode_vote_reply(header: bytes, group: str, sender: NodeId, to: NodeId) -> VoteReply:
    message = pb.VoteReply.FromString(header)
    refusal = _REFUSALS.get(message.refusal)
    if (
        refusal is None
        or message.granted != (refusal is Refusal.NONE)
        or (message.granted and message.diverged)
    ):
        raise _FieldError(f"granted {message.granted} with refusal {message.refusal}")
    return VoteReply(
        group,
        sender,
        to,
        _term(message.term),
        _term(message.vote_term, at_least=1),
        message.granted,
        message.pre,
        message.recovery,
        Refusal.HISTORY_CONFLICT if message.diverged else refusal,
        message.leader,
    )


def _decode_install(header: bytes, group: str, sender: NodeId, to: NodeId) -> InstallSnapshot:
    message = pb.InstallSnapshot.FromString(header)
    if not message.HasField("meta") or not message.meta.HasField("configuration_at"):
        raise _FieldError("no meta, or no configuration in it")
    term = _term(message.term, at_least=1)
    meta = SnapshotMeta(
        _index("index", message.meta.index, at_least=0),
        _term(message.meta.term, at_least=1),
        _configuration_at(message.meta.configuration_at),
    )
    if meta.term > term:
        raise _FieldError(f"snapshot of term {meta.term} in term {term}")
    if meta.configuration_at.index > meta.index:
        raise _FieldError(f"configuration of {meta.configuration_at.index} at {meta.index}")
    return InstallSnapshot(group, sender, to, term, meta, message.round)


def _decode_campaign_now(header: bytes, group: str, sender: NodeId, to: NodeId) -> CampaignNow:
    message = pb.CampaignNow.FromString(header)
    return CampaignNow(group, sender, to, _term(message.term, at_least=1))


def _term(term: Term, *, at_least: Term = 0) -> Term:
    if not at_least <= term <= TERM_MAX:
        raise _FieldError(f"term {term}, not within {at_least}..{TERM_MAX}")
    return term


def _index(name: str, index: Index, *, at_least: Index = NO_INDEX) -> Index:
    if not at_least <= index <= INDEX_MAX:
        raise _FieldError(f"{name} is {index}, not within {at_least}..{INDEX_MAX}")
    return index


def _incarnation(incarnation: int) -> int:
    if incarnation > INCARNATION_MAX:
        raise _FieldError(f"incarnation {incarnation}, at most {INCARNATION_MAX} can be")
    return incarnation


def _runs(rows: Iterable[pb.TermRun]) -> tuple[TermRun, ...]:
    runs = tuple((run.index, run.term) for run in rows)
    if len(runs) > RUN_COUNT_MAX:
        raise _FieldError(f"{len(runs)} term runs, {RUN_COUNT_MAX} allowed")
    last_index, last_term = NO_INDEX, 0
    for index, term in runs:
        if not last_index < index <= INDEX_MAX or not last_term < term <= TERM_MAX:
            raise _FieldError(f"term run ({index}, {term}) after ({last_index}, {last_term})")
        last_index, last_term = index, term
    return runs


def _configuration_at(row: pb.ConfigurationAt) -> ConfigurationAt:
    voters, learners = tuple(row.configuration.voters), tuple(row.configuration.learners)
    members = {*voters, *learners}
    is_set = len(members) == len(voters) + len(learners) <= MEMBER_COUNT_MAX
    is_sorted = list(voters) == sorted(voters) and list(learners) == sorted(learners)
    if not is_set or not is_sorted or NO_NODE in members or not voters:
        raise _FieldError(f"configuration of voters {voters}, learners {learners}")
    return ConfigurationAt(_index("index", row.index), Configuration(voters, learners))


_DECODERS: Final[dict[FrameKind, Callable[[bytes, str, NodeId, NodeId], Message]]] = {
    FrameKind.APPEND: _decode_append,
    FrameKind.APPEND_REPLY: _decode_append_reply,
    FrameKind.VOTE_REQUEST: _decode_vote_request,
    FrameKind.VOTE_REPLY: _decode_vote_reply,
    FrameKind.INSTALL_SNAPSHOT: _decode_install,
    FrameKind.CAMPAIGN_NOW: _decode_campaign_now,
}
