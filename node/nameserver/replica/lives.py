"""The lives of the replicas of the name server: which of them have lost their memory.

Owns this replica's life and standing, its memory of the other replicas, and the rule which members
count for a quorum. The comparison is `raft.lives`, the file `node.peers.lives_file`, the
bytes `node.peers.lives_codec`: as in a group of brokers (decision 34). Must not know sockets or
PySyncObj. One thread.

A replica sends its life, and its memory of all others, as the first message of each connection and
once a second. A replica whose disk is older than the others' memory of it is an old copy: it
receives that memory, and becomes *joining*, durably, under a new incarnation. Until a
replica has received the lives of all others, or for `meet_s`, it takes no part in Raft. Messages of
a joining replica or an old copy count for no vote and no commit. A joining replica counts again
when it has applied an entry that it submitted while joining: a majority without it committed that
entry, so no vote that it forgot can elect a leader, and it has all entries committed before.
"""

import logging
import secrets
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from node.nameserver.replica.journal import Journal, Own
from node.peers.lives_codec import LivesFormatError, decode_lives, encode_lives
from node.peers.lives_file import LivesFile
from raft.lives import NO_LIFE, PAST_MAX, Known, Lives, ToldLife, memory_lost
from raft.messages import Standing
from store.errors import FileSystemError, StoreFullError
from store.files.file_system import FileSystem

LIVES_SIZE_BYTES_MAX: Final = 16 * 1024
"""Size of the lives in a message: 16 members and 64 nonces take less than 2 KiB."""
SAVE_SECONDS: Final = 1.0
"""Interval of saving and sending the values that grow: the acks of each member, and the commit."""
UNGUARDED_COUNT_MAX: Final = 2
"""Replicas up to which lives are not compared: of two, both have all committed entries, and either
needs the other to lead. So an old copy of one does no harm, and no third replica could bring it up
to date."""
_log: Final = logging.getLogger(__name__)


class LivesFinding(NamedTuple):
    """The consequences of a member's lives."""

    cut: tuple[str, ...] = ()
    """Members that may be old copies after all: cut their connections, so that they send their
    lives again."""
    has_lost_memory: bool = False
    """Whether this replica became joining by the message."""


class ReplicaLives:
    """The lives as one replica knows them. Values that it returns are durable, or in the journal,
    which is synced before any message leaves."""

    def __init__(
        self, fs: FileSystem, directory: str, address: str, journal: Journal, *, meet_s: float
    ) -> None:
        """Begin the next life; durable on return, with all changes of the journal. Raises a store
        error."""
        self._address, self._journal = address, journal
        self._members = journal.members
        self._numbers = {member: 1 + at for at, member in enumerate(self._members)}
        self._names = {number: member for member, number in self._numbers.items()}
        self._is_guarded = len(self._members) > UNGUARDED_COUNT_MAX
        self._file = LivesFile(fs, directory)
        loaded = self._file.load(",".join(self._members), self._numbers[address])
        own = journal.own
        self._nonce = secrets.randbits(63) | 1
        # A higher life in the journal was begun while the other file was lost.
        past = loaded.nonces[:PAST_MAX] if loaded.life >= own.life else ()
        life = 1 + max(loaded.life, own.life)
        joined = max(loaded.joined, own.incarnation) if own.is_joining else loaded.joined
        self._record = self._saved = replace(
            loaded, life=life, nonces=(self._nonce, *past), joined=joined
        )
        if loaded.incarnation == own.incarnation:
            journal.setRaftCommitIndex(max(journal.getRaftCommitIndex(), loaded.committed))
        journal.set_own(own._replace(life=life))
        journal.sync()
        self._file.save(self._record)
        self._start = self._term(), journal.last_index
        self._lives = Lives(loaded.known, loaded.apart)
        self._standings: dict[str, Standing] = {}
        """The standings of connected members, as their lives have them."""
        self.refused: dict[str, str] = {}
        """Connected members that began with an old copy, and in which respect it was older."""
        now_s = time.monotonic()
        self._meet_until_s = now_s + (meet_s if self._is_guarded else 0.0)
        self._next_save_s = now_s + SAVE_SECONDS

    # --- Members that count ---

    @property
    def is_joining(self) -> bool:
        """Whether this replica has no memory."""
        return self._journal.own.is_joining

    @property
    def takes_part(self) -> bool:
        """Whether this replica may vote, stand for election, ack and lead. Once true, only a
        detected loss of memory makes it false."""
        return not self.is_joining and self.has_met

    @property
    def has_met(self) -> bool:
        """Whether all other replicas have sent their lives, or `meet_s` has passed."""
        if self._meet_until_s and (
            len(self._standings) >= len(self._members) - 1 or time.monotonic() >= self._meet_until_s
        ):
            self._meet_until_s = 0.0
        return not self._meet_until_s

    def counts(self, member: str) -> bool:
        """Whether the votes and acks of a member count, and it may lead.

        A member of which no life is known counts until it was seen in one."""
        if not self._is_guarded:
            return True
        if member not in self._standings:
            return self._known(member).life == NO_LIFE
        return self.has_told(member)

    def has_told(self, member: str) -> bool:
        """Whether a connected member has sent its life and counts as a voter."""
        return self._standings.get(member) is Standing.FULL and member not in self.refused

    @property
    def problem(self) -> str:
        """The reason why this replica does not count; empty if it counts."""
        if not self.is_joining:
            return ""
        lost = self._record.lost or "it was found before this start"
        return (
            f"its directory is new or an old copy of what it held: {lost}; it counts again once a "
            f"majority of the others has brought it up to date"
        )

    @property
    def marker(self) -> bytes:
        """The name of this incarnation in this life, for the entry that ends the joining."""
        return f"{self._address} {self._nonce} {self._journal.own.incarnation}".encode()

    @property
    def dropped_memory_count(self) -> int:
        """Memories that members told of and that were dropped for want of room, since the start."""
        return self._lives.dropped_count

    # --- Messages of lives ---

    def tell(self) -> dict[str, Any]:
        """Return the message of lives for a member. Sync the journal before sending it."""
        lives = encode_lives(self._own(), self._lives.known)
        return {"type": "response_vote", "term": 0, "members": self._members, "lives": lives}

    def hear(self, member: str, members: list[str], lives: bytes) -> LivesFinding:
        """Process the lives of a member. Raises LivesFormatError, or a store error, after which the
        replica must stop."""
        if members != self._members:
            # The member has other settings, so its numbers mean other replicas.
            return LivesFinding()
        statement, views, *_ = decode_lives(lives)
        if statement.life == NO_LIFE or not views.keys() <= self._names.keys():
            raise LivesFormatError(f"life {statement.life}, nodes {sorted(views)}")
        if not self._is_guarded:
            self._standings[member] = Standing.FULL
            return LivesFinding()
        before = self._marks()
        has_lost_memory = self._hear_of_self(member, views)
        number = self._numbers[member]
        # The message may have crossed acks that came through other members, so within one life it
        # is not compared here: the member compares itself with the lives that it receives.
        self._note(member, statement, self._lives.judge(number, statement, asked=Known()))
        cut = [
            self._names[other]
            for other, view in views.items()
            if other not in (number, self._numbers[self._address]) and self._lives.hear(other, view)
        ]
        if self._marks() != before:
            self.save()  # Values that have only grown are saved once a second.
        return LivesFinding(tuple(cut), has_lost_memory)

    def on_disconnected(self, member: str) -> None:
        """Forget the standing of a member, which was that of the connection; let the next tick save
        its promises."""
        self._next_save_s = 0.0
        self._standings.pop(member, None)
        self.refused.pop(member, None)

    def on_promise(self, member: str, term: int, last_index: int, committed: int) -> None:
        """Remember the term of a member, and the durable and committed indexes that it reported."""
        view = self._known(member)
        if (term, last_index) > (view.acked_term, view.acked) or committed > view.committed:
            promised = Known(NO_LIFE, 0, view.incarnation, term, term, last_index, committed)
            self._lives.note(self._numbers[member], promised)

    def on_term(self, member: str, term: int) -> None:
        """Remember that a member was seen in a term."""
        if term > self._known(member).term:
            self._lives.note_term(self._numbers[member], term)

    # --- Changes of this replica ---

    def become_full(self) -> None:
        """End the joining of this replica; durable with the next sync of the journal."""
        self._record = replace(self._record, lost="")
        self._journal.set_own(self._journal.own._replace(is_joining=False))
        _log.warning("this replica of the name server counts again")

    def is_due(self) -> bool:
        """Whether it is time to save and to send the lives."""
        return time.monotonic() >= self._next_save_s

    def save(self) -> None:
        """Save changes; after an error of a full disk only log it, since the next call tries again.
        Raises SyncFailedError."""
        self._next_save_s = time.monotonic() + SAVE_SECONDS
        record = replace(
            self._record,
            known=dict(self._lives.known),
            apart=dict(self._lives.apart),
            committed=self._journal.getRaftCommitIndex(),
            incarnation=self._journal.own.incarnation,
        )
        if record == self._saved:
            return
        try:
            self._file.save(record)
            self._record = self._saved = record
        except (StoreFullError, FileSystemError) as error:
            _log.warning("what is remembered of other replicas was not saved: %s", error)

    # --- Internals ---

    def _marks(self) -> list[tuple[int, ...]]:
        """Return the values that show an old copy at once, unlike those that only grow."""
        views = self._lives.known
        return [(number, *views[number][:4]) for number in sorted(views)]

    def _known(self, member: str) -> Known:
        return self._lives.of(self._numbers[member])

    def _term(self) -> int:
        """Return the term of this replica, as the library derives it from the journal."""
        journal = self._journal
        return max(journal.getCurrentTerm(), journal.term_at(journal.last_index) or 0)

    def _own(self) -> ToldLife:
        journal, own = self._journal, self._journal.own
        start_term, start_last_index = self._start
        return ToldLife(
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
        view = known.get(self._numbers[self._address])
        if view is None:
            return False
        lost = memory_lost(view, self._own())
        if not lost:
            return False
        own = self._journal.own
        incarnation = max(int(time.time()), view.incarnation + 1, own.incarnation + 1)
        self._record = replace(self._record, lost=f"{lost} (by {member})", joined=incarnation)
        self._journal.set_own(Own(own.life, incarnation, is_joining=True))
        self._journal.sync()
        self.save()
        _log.error("this replica of the name server is an old copy (%s): it no longer votes", lost)
        return True

    def _note(self, member: str, life: ToldLife, lost: str) -> None:
        self._standings[member] = life.standing
        if not lost:
            self.refused.pop(member, None)
        elif self.refused.get(member) != lost:
            self.refused[member] = lost
            _log.error("replica %s of the name server is an old copy: %s", member, lost)


def told_in(message: Mapping[str, Any]) -> tuple[list[str], bytes] | None:
    """Return the members and lives in a message of lives; None for any other message."""
    if message.get("type") != "response_vote" or message.get("term") != 0:
        return None
    members, lives = message.get("members"), message.get("lives")
    if not isinstance(lives, bytes) or not 0 < len(lives) <= LIVES_SIZE_BYTES_MAX:
        return None
    if not isinstance(members, list) or not all(isinstance(member, str) for member in members):
        return None
    return members, lives
