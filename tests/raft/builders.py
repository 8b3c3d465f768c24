"""Messages with defaults, for tests that speak to one node as its peers would."""

from __future__ import annotations

from collections.abc import Sequence

from raft.messages import (
    NO_INDEX,
    NO_NODE,
    NO_TERM,
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
    VoteReply,
    VoteRequest,
)
from raft.ready import EntryKind
from tests.raft.cluster import GROUP, Cluster
from tests.raft.memory_log import StoredEntry, runs_of

META = SnapshotMeta(7, 4, ConfigurationAt(NO_INDEX, Configuration((1, 2, 3))))


def append(
    sender: int,
    to: int,
    term: int,
    *,
    prev: tuple[int, int] = (NO_INDEX, NO_TERM),
    terms: Sequence[int] = (),
    commit: int = NO_INDEX,
    round_id: int = 0,
    configurations: tuple[ConfigurationAt, ...] = (),
    admitted: int = 0,
) -> AppendRequest:
    """Build an append of entries of `terms` right after `prev` = (index, term)."""
    lo = prev[0] + 1
    return AppendRequest(
        GROUP,
        sender,
        to,
        term,
        prev[0],
        prev[1],
        lo + len(terms),
        runs_of(terms, lo),
        commit,
        round_id,
        configurations,
        admitted,
    )


def payload_of(message: AppendRequest) -> tuple[StoredEntry, ...] | None:
    """Return the bytes an honest leader would send with `message`."""
    brought = {entry.index: entry.configuration for entry in message.configurations}
    entries = []
    for position, (first, term) in enumerate(message.runs):
        is_last = position + 1 == len(message.runs)
        run_hi = message.hi if is_last else message.runs[position + 1][0]
        for index in range(first, run_hi):
            kind = EntryKind.CONFIGURATION if index in brought else EntryKind.DATA
            entries.append(StoredEntry(index, term, kind, brought.get(index, f"{index}@{term}")))
    return tuple(entries) or None


def send(cluster: Cluster, message: AppendRequest) -> None:
    """Hand an append with its bytes to the node that it is for."""
    cluster.receive(message.to, message, payload_of(message))


def append_reply(
    sender: int,
    to: int,
    term: int,
    *,
    match: int = NO_INDEX,
    refusal: Refusal = Refusal.NONE,
    refused_prev: int = NO_INDEX,
    hint_last: int = NO_INDEX,
    hint_runs: tuple[tuple[int, int], ...] = (),
    round_id: int = 0,
    standing: Standing = Standing.FULL,
    incarnation: int = 0,
) -> AppendReply:
    return AppendReply(
        GROUP,
        sender,
        to,
        term,
        match,
        refusal,
        refused_prev,
        hint_last,
        hint_runs,
        round_id,
        standing,
        incarnation,
    )


def vote_request(
    sender: int,
    to: int,
    term: int,
    *,
    last: tuple[int, int] = (NO_INDEX, NO_TERM),
    pre: bool = False,
    transfer: bool = False,
    recovery: bool = False,
) -> VoteRequest:
    """Build a request for a vote in `term`; a pre-vote comes from a node of the term before."""
    own_term = term - 1 if pre else term
    return VoteRequest(GROUP, sender, to, own_term, term, last[0], last[1], pre, transfer, recovery)


def vote_reply(
    sender: int,
    to: int,
    term: int,
    *,
    vote_term: int | None = None,
    granted: bool = True,
    pre: bool = False,
    recovery: bool = False,
    refusal: Refusal | None = None,
) -> VoteReply:
    if refusal is None:
        refusal = Refusal.NONE if granted else Refusal.ALREADY_VOTED
    wanted = term if vote_term is None else vote_term
    return VoteReply(GROUP, sender, to, term, wanted, granted, pre, recovery, refusal, NO_NODE)


def install(sender: int, to: int, term: int, meta: SnapshotMeta) -> InstallSnapshot:
    return InstallSnapshot(GROUP, sender, to, term, meta, 0)


def campaign_now(sender: int, to: int, term: int) -> CampaignNow:
    return CampaignNow(GROUP, sender, to, term)


def messages_of(term: int) -> dict[str, Message]:
    """Return every kind of message of a term, from node 3 to node 1."""
    return {
        "vote request": vote_request(3, 1, term, last=(50, 8)),
        "vote refusal": vote_reply(3, 1, term, vote_term=2, granted=False),
        "vote grant": vote_reply(3, 1, term),
        "pre-vote refusal": vote_reply(3, 1, term, vote_term=2, granted=False, pre=True),
        "pre-vote grant": vote_reply(3, 1, term, vote_term=2, pre=True),
        "append": append(3, 1, term),
        "append ack": append_reply(3, 1, term, match=0),
        "append refusal": append_reply(3, 1, term, refusal=Refusal.OLD_TERM),
        "snapshot": install(3, 1, term, META),
        "campaign now": campaign_now(3, 1, term),
    }
