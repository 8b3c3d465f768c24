"""The lives of the replicas of the name server: which of them have lost their memory.

Owns this replica's life and standing, what it remembers of the others, and who counts for a quorum.
The comparison is `raft.lives`, the file `node.replication.lives_file`, the bytes
`node.peers.lives_codec`: as in a group of brokers (decision 34). Must not know sockets or
PySyncObj. One thread.

A replica tells its life, with what it remembers of all others, as the first message of each
connection and once a second. Whose disk is older than what is remembered of it is an old copy: it
hears so, and becomes *joining* by itself, durably, under a new incarnation. A replica that was told
nothing takes part in nothing before it has heard all others, or for `meet_s`. What a joining one or
an old copy says counts for no vote and no commit. It counts again when it has applied an entry that
it handed in as a joining one: that entry was committed by a majority without it, so none of the
votes that it forgot can elect anybody, and it has what was committed before.
"""

import logging
import secrets
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import Enum, auto
from typing import Any, Final, NamedTuple

from node.nameserver.replica.journal import Journal, Own
from node.peers.lives_codec import LivesFormatError, decode_lives, encode_lives
from node.replication.lives_file import LivesFile
from raft.lives import NO_LIFE, PAST_MAX, Known, Lives, Told, memory_lost
from raft.messages import Standing
from store.errors import FileSystemError, StoreFullError
from store.files.file_system import FileSystem

LIVES_SIZE_BYTES_MAX: Final = 16 * 1024
"""Of what a replica tells: 16 members and 64 nonces take less than 2 KiB."""
SAVE_SECONDS: Final = 1.0
"""How often what grows is saved and told: how far each has acked, and what is committed here."""
UNGUARDED_COUNT_MAX: Final = 2
"""Of two replicas both have everything that is committed, and either needs the other to lead. So an
old copy of one harms nothing, and nobody else could bring it back."""
_log: Final = logging.getLogger(__name__)


class Hearing(Enum):
    """What a member said of itself on its connection."""

    VOTER = auto()
    JOINING = auto()
    OLD_COPY = auto()


class Heard(NamedTuple):
    """What follows from what a member told."""

    cut: tuple[str, ...] = ()
    """Members that may be old copies after all: let them say again how they are."""
    has_lost_memory: bool = False
    """This replica became joining by it."""


class ReplicaLives:
    """One replica's. What it is asked for is durable, or in the journal that is synced before
    anything leaves."""

    def __init__(
        self, fs: FileSystem, directory: str, address: str, journal: Journal, *, meet_s: float
    ) -> None:
        """Begin the next life; durable on return, with all that is in the journal. Raises a store
        error."""
        self._address, self._journal = address, journal
        self._members = journal.members
        self._numbers = {member: 1 + at for at, member in enumerate(self._members)}
        self._names = {number: member for member, number in self._numbers.items()}
        self._is_guarded = len(self._members) > UNGUARDED_COUNT_MAX
        self._file = LivesFile(fs, directory)
        found = self._file.load(",".join(self._members), self._numbers[address])
        own = journal.own
        self._nonce = secrets.randbits(63) | 1
        # A life that only the journal knows was begun while the other file was lost.
        past = found.nonces[:PAST_MAX] if found.life >= own.life else ()
        life = 1 + max(found.life, own.life)
        joined = max(found.joined, own.incarnation) if own.is_joining else found.joined
        self._record = self._saved = replace(
            found, life=life, nonces=(self._nonce, *past), joined=joined
        )
        if found.incarnation == own.incarnation:
            journal.setRaftCommitIndex(max(journal.getRaftCommitIndex(), found.committed))
        journal.set_own(own._replace(life=life))
        journal.sync()
        self._file.save(self._record)
        self._start = self._term(), journal.last_index
        self._lives = Lives(found.known)
        self._hearings: dict[str, Hearing] = {}
        """Of members that are connected and told something."""
        self.refused: dict[str, str] = {}
        """Members that are connected and began with an old copy, and in what it was older."""
        now_s = time.monotonic()
        self._meet_until_s = now_s + (meet_s if self._is_guarded else 0.0)
        self._next_save_s = now_s + SAVE_SECONDS

    # --- Who counts ---

    @property
    def is_joining(self) -> bool:
        """Whether this replica has no memory."""
        return self._journal.own.is_joining

    @property
    def takes_part(self) -> bool:
        """Whether this replica may vote, stand, ack and lead. Once it does, only a loss of memory
        ends it."""
        return not self.is_joining and self.has_met

    @property
    def has_met(self) -> bool:
        """Whether the others had their chance to say that this is an old copy."""
        if self._meet_until_s and (
            len(self._hearings) >= len(self._members) - 1 or time.monotonic() >= self._meet_until_s
        ):
            self._meet_until_s = 0.0
        return not self._meet_until_s

    def counts(self, member: str) -> bool:
        """Whether the votes and acks of a member count, and whether it may lead.

        One of an earlier build tells no life; it counts until it was seen in one."""
        if not self._is_guarded:
            return True
        hearing = self._hearings.get(member)
        if hearing is None:
            return self._known(member).life == NO_LIFE
        return hearing is Hearing.VOTER

    def has_told(self, member: str) -> bool:
        """Whether a member on its connection is a voter that knows of lives."""
        return self._hearings.get(member) is Hearing.VOTER

    @property
    def problem(self) -> str:
        """Why this replica counts for nothing; empty if it counts."""
        if not self.is_joining:
            return ""
        lost = self._record.lost or "it was found before this start"
        return (
            f"its directory is new or an old copy of what it held: {lost}; it counts again once a "
            f"majority of the others has brought it up to date"
        )

    @property
    def marker(self) -> bytes:
        """What names this incarnation in this life, for the entry that ends it."""
        return f"{self._address} {self._nonce} {self._journal.own.incarnation}".encode()

    # --- What is told and heard ---

    def tell(self) -> dict[str, Any]:
        """Return what to send to a member. The journal has to be synced before.

        Its other parts are a vote in no term, which means nothing to an earlier build."""
        lives = encode_lives(self._own(), self._lives.known)
        return {"type": "response_vote", "term": 0, "members": self._members, "lives": lives}

    def hear(self, member: str, members: list[str], lives: bytes) -> Heard:
        """Take in what a member tells. Raises LivesFormatError, or a store error (stop)."""
        if members != self._members:
            return Heard()  # Of other settings: the same numbers mean others.
        told, known = decode_lives(lives)
        if told.life == NO_LIFE or not known.keys() <= self._names.keys():
            raise LivesFormatError(f"life {told.life}, nodes {sorted(known)}")
        if not self._is_guarded:
            self._hearings[member] = Hearing.VOTER
            return Heard()
        before = self._marks()
        has_lost_memory = self._hear_of_self(member, known)
        number = self._numbers[member]
        # What it said may have crossed acks that came by way of others, so within one life it is
        # not compared here: it compares itself with what it is told.
        self._note(member, told, self._lives.judge(number, told, asked=Known()))
        cut = [
            self._names[other]
            for other, found in known.items()
            if other not in (number, self._numbers[self._address])
            and self._lives.hear(other, found)
        ]
        if self._marks() != before:
            self.save()  # What has only grown is saved once a second.
        return Heard(tuple(cut), has_lost_memory)

    def on_disconnected(self, member: str) -> None:
        """What it said was of that connection; what it promised is saved with the next tick."""
        self._next_save_s = 0.0
        self._hearings.pop(member, None)
        self.refused.pop(member, None)

    def on_promise(self, member: str, term: int, last_index: int, committed: int) -> None:
        """A member said in a term up to where its journal is durable, and is committed."""
        known = self._known(member)
        if (term, last_index) > (known.acked_term, known.acked) or committed > known.committed:
            found = Known(NO_LIFE, 0, known.incarnation, term, term, last_index, committed)
            self._lives.note(self._numbers[member], found)

    def on_term(self, member: str, term: int) -> None:
        """A member was seen in a term."""
        if term > self._known(member).term:
            self._lives.note_term(self._numbers[member], term)

    # --- Changes of this replica ---

    def become_full(self) -> None:
        """This replica has what it needs; durable with the next sync of the journal."""
        self._record = replace(self._record, lost="")
        self._journal.set_own(self._journal.own._replace(is_joining=False))
        _log.warning("this replica of the name server counts again")

    def is_due(self) -> bool:
        """Whether it is time to save and to tell."""
        return time.monotonic() >= self._next_save_s

    def save(self) -> None:
        """Save what is new. A full disk is no harm: it is tried again. Raises SyncFailedError."""
        self._next_save_s = time.monotonic() + SAVE_SECONDS
        found = replace(
            self._record,
            known=dict(self._lives.known),
            committed=self._journal.getRaftCommitIndex(),
            incarnation=self._journal.own.incarnation,
        )
        if found == self._saved:
            return
        try:
            self._file.save(found)
            self._record = self._saved = found
        except (StoreFullError, FileSystemError) as error:
            _log.warning("what is remembered of other replicas was not saved: %s", error)

    # --- Internals ---

    def _marks(self) -> list[tuple[int, ...]]:
        """Return what a copy is found by however little it has grown since."""
        known = self._lives.known
        return [(one, *known[one][:4]) for one in sorted(known)]

    def _known(self, member: str) -> Known:
        return self._lives.of(self._numbers[member])

    def _term(self) -> int:
        """The term of this replica, as the library has it from the journal."""
        journal = self._journal
        return max(journal.getCurrentTerm(), journal.term_at(journal.last_index) or 0)

    def _own(self) -> Told:
        journal, own = self._journal, self._journal.own
        start_term, start_last_index = self._start
        return Told(
            own.life,
            self._nonce,
            start_term,
            start_last_index,
            self._term(),
            journal.last_index,
            Standing.JOINING if own.is_joining else Standing.FULL,
            own.incarnation,
            self._record.joined,
            self._record.nonces[1:],
        )

    def _hear_of_self(self, member: str, known: Mapping[int, Known]) -> bool:
        found = known.get(self._numbers[self._address])
        if found is None:
            return False
        lost = memory_lost(found, self._own())
        if not lost:
            return False
        own = self._journal.own
        incarnation = max(int(time.time()), found.incarnation + 1, own.incarnation + 1)
        self._record = replace(self._record, lost=f"{lost} (by {member})", joined=incarnation)
        self._journal.set_own(Own(own.life, incarnation, is_joining=True))
        self._journal.sync()
        self.save()
        _log.error("this replica of the name server is an old copy (%s): it votes no more", lost)
        return True

    def _note(self, member: str, told: Told, lost: str) -> None:
        if lost:
            self._hearings[member] = Hearing.OLD_COPY
            if self.refused.get(member) != lost:
                self.refused[member] = lost
                _log.error("replica %s of the name server is an old copy: %s", member, lost)
            return
        self.refused.pop(member, None)
        is_full = told.standing is Standing.FULL
        self._hearings[member] = Hearing.VOTER if is_full else Hearing.JOINING


def told_in(message: Mapping[str, Any]) -> tuple[list[str], bytes] | None:
    """Return the members and lives that a message tells; None for any other message."""
    if message.get("type") != "response_vote" or message.get("term") != 0:
        return None
    members, lives = message.get("members"), message.get("lives")
    if not isinstance(lives, bytes) or not 0 < len(lives) <= LIVES_SIZE_BYTES_MAX:
        return None
    if not isinstance(members, list) or not _are_texts(members):
        return None
    return members, lives


def _are_texts(found: Iterable[object]) -> bool:
    return all(isinstance(one, str) for one in found)
