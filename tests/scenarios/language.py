"""The scenario language: commands to a cluster, and the lines that tell what they led to.

A file holds blocks separated by blank lines: commands, a line of four dashes, what happened. Lines
that begin with # are prose. Messages are printed when sent; steady heartbeats and acks that repeat
what was printed last on their link are not. `README.md` beside this file lists the commands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from raft.errors import PeerProtocolError, RaftError
from raft.messages import (
    NO_INDEX,
    AppendReply,
    AppendRequest,
    CampaignNow,
    InstallSnapshot,
    Message,
    Refusal,
    SnapshotMeta,
    Standing,
    TermRun,
    VoteReply,
    VoteRequest,
)
from raft.pump.effects import Completion
from raft.ready import RoleChange
from raft.rules import recovery, snapshot, transfer
from raft.rules.membership import Change, ChangeKind
from raft.transitions import Role
from tests.raft.builders import append, append_reply, install, payload_of, vote_reply, vote_request
from tests.raft.cluster import DELIVERY_COUNT_MAX, Cluster, state_of

DASHES = "----"
Block = tuple[str, list[str], list[str]]


def render(blocks: list[Block]) -> str:
    """Write blocks of (prose, commands, output) as a file."""
    parts = []
    for prose, commands, output in blocks:
        lines = prose.splitlines() + commands
        if commands:
            lines += [DASHES, *output]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def parse(text: str) -> list[Block]:
    blocks: list[Block] = []
    for part in text.strip().split("\n\n"):
        lines = part.splitlines()
        at = lines.index(DASHES) if DASHES in lines else len(lines)
        prose = "\n".join(line for line in lines[:at] if line.startswith("#"))
        commands = [line for line in lines[:at] if not line.startswith("#")]
        blocks.append((prose, commands, lines[at + 1 :]))
    return blocks


def place(index: int, term: int) -> str:
    return "start" if index == NO_INDEX else f"{index}@{term}"


def span(runs: tuple[TermRun, ...], hi: int) -> str:
    """Write term runs as `3..5@2 6@3`."""
    parts = []
    for at, (first, term) in enumerate(runs):
        last = (runs[at + 1][0] if at + 1 < len(runs) else hi) - 1
        parts.append(f"{first}@{term}" if first == last else f"{first}..{last}@{term}")
    return ",".join(parts)


def describe(message: Message) -> str:
    """Write a message without sender and receiver."""
    match message:
        case VoteRequest():
            kind = "PreVote" if message.pre else "Vote"
            flags = " transfer" * message.transfer + " recovery" * message.recovery
            last = place(message.last_index, message.last_term)
            return f"{kind} term={message.vote_term} last={last}{flags}"
        case VoteReply():
            kind = "PreVoteReply" if message.pre else "VoteReply"
            said = "granted" if message.granted else f"rejected({message.refusal.name.lower()})"
            leader = f" leader={message.leader}" if message.leader and not message.granted else ""
            return f"{kind} term={message.term} {said}{leader}"
        case AppendRequest():
            what = f" {span(message.runs, message.hi)}" if message.runs else ""
            kind = "Append" if message.runs else "Heartbeat"
            prev = place(message.prev_index, message.prev_term)
            admitted = f" admitted={message.admitted}" if message.admitted else ""
            members = "".join(f" members@{c.index}" for c in message.configurations)
            asked = f" round={message.round}" if message.round else ""
            return (
                f"{kind} term={message.term} prev={prev}{what} commit={message.commit}"
                f"{members}{asked}{admitted}"
            )
        case AppendReply():
            doubt = ""
            if message.standing is not Standing.FULL:
                doubt = f" {message.standing.name.lower()}({message.incarnation})"
            asked = f" round={message.round}" if message.round else ""
            if message.refusal is Refusal.NO_MATCH:
                hint = span(message.hint_runs, message.hint_last + 1) or "nothing"
                return (
                    f"AppendReply term={message.term} rejected(no_match)"
                    f" prev={message.refused_prev} has={hint}{asked}{doubt}"
                )
            if message.refusal is Refusal.OLD_TERM:
                return f"AppendReply term={message.term} rejected(old_term){doubt}"
            return f"AppendReply term={message.term} match={message.match}{asked}{doubt}"
        case InstallSnapshot():
            meta = message.meta
            return f"Snapshot term={message.term} through={place(meta.index, meta.term)}"
        case CampaignNow():
            return f"CampaignNow term={message.term}"


class Transcript:
    """Runs one file. Every line of output comes from what the pumps did."""

    def __init__(self) -> None:
        self.cluster: Cluster | None = None
        self.lines: list[str] = []
        self._last_printed: dict[tuple[int, int, str], str] = {}
        self._roles: dict[int, Role] = {}
        self._merge: tuple[int, str] | None = None
        self._merged_to: set[int] = set()
        self._is_quiet = False

    def run(self, text: str) -> str:
        """Return the file with the output replaced by what happened."""
        blocks = []
        for prose, commands, _ in parse(text):
            self.lines = []
            for command in commands:
                self._command(command)
            blocks.append((prose, commands, self.lines or ["ok"]))
        return render(blocks)

    def _command(self, line: str) -> None:
        verb, *words = line.split()
        options = dict(word.split("=", 1) for word in words if "=" in word)
        plain = [word for word in words if "=" not in word]
        method: Callable[[list[str], dict[str, str]], None] | None = getattr(
            self, f"do_{verb}", None
        )
        if method is None and verb not in CALLS:
            raise ValueError(f"unknown command: {line}")
        self._merge = None
        try:
            if method is None:
                CALLS[verb](self.c, plain, options)
            else:
                method(plain, options)
        except IndexError as error:
            raise ValueError(f"too few words: {line}") from error
        except PeerProtocolError as error:
            self.lines.append(f"dropped: {error}")
        except RaftError as error:
            self.lines.append(f"refused: {error}")
        except AssertionError as error:
            self.lines.append(f"node stops: {error}")

    @property
    def c(self) -> Cluster:
        assert self.cluster is not None, "no cluster yet"
        return self.cluster

    def _nodes(self, word: str) -> Sequence[int]:
        return sorted(self.c.nodes) if word == "all" else ids(word)

    # What happened.

    def _observe(self, what: str, node: int, value: Any) -> None:
        if what == "role":
            self._on_role(node, value)
        if self._is_quiet:
            return
        if what == "sent":
            self._on_sent(*value)
            return
        self._merge = None
        if what == "apply":
            lo, hi = value
            self.lines.append(
                f"{node} applies {lo}" if hi == lo + 1 else f"{node} applies {lo}..{hi - 1}"
            )
        elif what == "install":
            self.lines.append(f"{node} installs snapshot through {place(value.index, value.term)}")
        elif what == "completed":
            done: Completion = value
            self.lines.append(f"{node} answers {done.waiter}: {done.resolution.value}")
        elif what == "read":
            self.lines.append(f"{node} read {value.read_id} at {value.index}")
        elif what == "read_failed":
            self.lines.append(f"{node} read {value} failed")
        elif what == "loss":
            self.lines.append(f"{node} reports possible loss from {value}")

    def _on_role(self, node: int, change: RoleChange) -> None:
        old = self._roles.get(node, Role.FOLLOWER)
        self._roles[node] = change.role
        if self._is_quiet:
            return
        self._merge = None
        leader = f" leader={change.leader}" if change.leader else ""
        self.lines.append(
            f"{node} {old.name.lower()} -> {change.role.name.lower()} term={change.term}{leader}"
            f" ({change.reason})"
        )

    def _on_sent(self, message: Message, is_cut: bool) -> None:
        said = describe(message)
        link = (message.sender, message.to, type(message).__name__)
        is_steady = isinstance(message, AppendReply) or said.startswith("Heartbeat")
        if is_steady and self._last_printed.get(link) == said:
            return
        self._last_printed[link] = said
        if is_cut:
            said += " dropped(cut)"
        key = (message.sender, said)
        if self._merge == key and message.to not in self._merged_to:
            head, tail = self.lines[-1].split(" ", 1)
            self.lines[-1] = f"{head},{message.to} {tail}"
            self._merged_to.add(message.to)
        else:
            self.lines.append(f"{message.sender}->{message.to} {said}")
            self._merge = key
            self._merged_to = {message.to}

    # Commands about nodes.

    def do_cluster(self, _: list[str], options: dict[str, str]) -> None:
        voters = ids(options.pop("voters"))
        learners = ids(options.pop("learners", ""))
        leader = int(options.pop("leader", "0"))
        settings: dict[str, Any] = {name: int(value) for name, value in options.items()}
        if settings.get("lease_reads"):
            settings["lease_reads"] = True
        self.cluster = Cluster(voters, learners, observer=self._observe, **settings)
        if leader:
            self._is_quiet = True
            self.cluster.elect(leader)
            self._is_quiet = False
            self._last_printed.clear()

    def do_preload(self, words: list[str], options: dict[str, str]) -> None:
        """Start a node again on a disk with these terms in its log."""
        node = int(words[0])
        first = self.c.state(node)
        initial = state_of(
            ids(options.get("terms", "")),
            voters=first.voters,
            learners=first.learners,
            term=int(options["term"]) if "term" in options else None,
            vote=int(options.get("vote", "0")),
            commit=int(options.get("commit", "-1")),
        )
        self.c.start(node, initial)

    def do_crash(self, words: list[str], _: dict[str, str]) -> None:
        """Power loss; `kill` in the second word keeps what the page cache held."""
        self.c.crash(int(words[0]), keep_unsynced="kill" in words)
        self._roles[int(words[0])] = Role.FOLLOWER

    def do_forget(self, words: list[str], options: dict[str, str]) -> None:
        """Lose acked entries of a crashed node: its cache was never synced (flush=async)."""
        log = self.c.nodes[int(words[0])].log
        log.truncate_from(int(options["from"]))
        log.sync()

    def do_old_copy(self, words: list[str], options: dict[str, str]) -> None:
        """A node was told by another one that its disk is an old copy (raft.lives)."""
        node = int(words[0])
        self.c.nodes[node].replica.lose_memory(int(options["incarnation"]))
        self.c.settle(node)

    def do_disk(self, words: list[str], _: dict[str, str]) -> None:
        node = self.c.nodes[int(words[0])]
        node.log.fails_hard_state = words[1] == "full"
        node.syncs_at_once = words[1] != "slow"
        if node.syncs_at_once:
            self.c.sync(int(words[0]))

    def do_room(self, words: list[str], _: dict[str, str]) -> None:
        self.c.nodes[int(words[0])].has_room = words[1] == "back"

    def do_applying(self, words: list[str], _: dict[str, str]) -> None:
        node = int(words[0])
        self.c.nodes[node].applies_at_once = words[1] == "fast"
        if words[1] == "fast":
            self.c.apply(node)
            self.c.settle(node)

    # Commands about time and network.

    def do_tick(self, words: list[str], options: dict[str, str]) -> None:
        for _ in range(int(options.get("count", "1"))):
            for node in self._nodes(words[0]):
                self.c.tick(node)

    def do_deliver(self, words: list[str], options: dict[str, str]) -> None:
        for pair in links(words):
            self.c.deliver(link=pair, count=int(options.get("count", DELIVERY_COUNT_MAX)))

    def do_drop(self, words: list[str], _: dict[str, str]) -> None:
        for pair in links(words):
            self.lines.append(f"{self.c.drop(pair)} lost")

    def do_repeat(self, words: list[str], _: dict[str, str]) -> None:
        """Duplicate what is in flight on a link."""
        copies = [o for o in self.c.net if (o.message.sender, o.message.to) == link(words[0])]
        self.c.net += copies

    def do_reverse(self, words: list[str], _: dict[str, str]) -> None:
        """Let what is in flight on a link arrive in the opposite order."""
        pair = link(words[0])
        mine = [o for o in self.c.net if (o.message.sender, o.message.to) == pair]
        rest = [o for o in self.c.net if o not in mine]
        self.c.net = rest + mine[::-1]

    def do_isolate(self, words: list[str], _: dict[str, str]) -> None:
        for node in ids(words[0]):
            self.c.isolate(node)

    def do_split(self, words: list[str], _: dict[str, str]) -> None:
        groups = [ids(word) for word in words]
        for group in groups:
            for other in groups:
                if other != group:
                    self.c.cuts |= {(a, b) for a in group for b in other}

    def do_inject(self, words: list[str], options: dict[str, str]) -> None:
        """Hand a forged or very late message to a node: `inject 1->2 Append term=1 prev=3@1
        ...`."""
        sender, to = link(words[0])
        term = int(options["term"])
        message: Message
        pre = words[1].startswith("Pre")
        payload: object = None
        if words[1] == "Append":
            terms, commit = ids(options.get("terms", "")), int(options.get("commit", "-1"))
            prev = index_and_term(options.get("prev", "start"))
            message = append(sender, to, term, prev=prev, terms=terms, commit=commit)
            payload = payload_of(message)
        elif words[1] == "Snapshot":
            members = self.c.state(to).configurations[0]
            meta = SnapshotMeta(*index_and_term(options["through"]), members)
            message = install(sender, to, term, meta)
        elif words[1] == "Ack":
            message = append_reply(sender, to, term, match=int(options["match"]))
        elif words[1] in ("Vote", "PreVote"):
            last = index_and_term(options.get("last", "start"))
            message = vote_request(sender, to, term, last=last, pre=pre)
        else:
            vote_term, granted = int(options.get("vote_term", term)), "rejected" not in words
            message = vote_reply(sender, to, term, vote_term=vote_term, granted=granted, pre=pre)
        self.c.receive(to, message, payload)

    # Commands of clients and operators.

    def do_propose(self, words: list[str], _: dict[str, str]) -> None:
        node = int(words[0])
        for word in words[1:]:
            self.c.nodes[node].replica.propose(word, word)
        self.c.settle(node)

    def do_change(self, words: list[str], _: dict[str, str]) -> None:
        node = int(words[0])
        change = Change(ChangeKind(words[1]), int(words[2]))
        self.c.nodes[node].replica.propose_change(change)
        self.c.settle(node)

    def do_transfer(self, words: list[str], _: dict[str, str]) -> None:
        transfer.transfer_leadership(self.c.nodes[int(words[0])].replica.core.state, int(words[1]))
        self.c.settle(int(words[0]))

    def do_accept_loss(self, words: list[str], _: dict[str, str]) -> None:
        recovery.accept_loss(self.c.nodes[int(words[0])].replica.core.state)
        self.c.settle(int(words[0]))

    def do_snapshot(self, words: list[str], _: dict[str, str]) -> None:
        """Take a snapshot of what is applied and cut the log there."""
        found = self.c.nodes[int(words[0])]
        meta: SnapshotMeta = snapshot.meta_at(found.replica.core.state, found.state.applied)
        found.log.snapshot = meta
        found.log.sync()
        snapshot.snapshot_durable(found.replica.core.state, meta)
        found.replica.compact_to(meta.index)
        found.log.cut(meta.index)
        self.lines.append(f"{words[0]} snapshot through {place(meta.index, meta.term)}")

    # Questions.

    def do_log(self, words: list[str], _: dict[str, str]) -> None:
        for node in self._nodes(words[0]):
            state = self.c.state(node)
            view = state.log
            held = span(view.all_runs(), view.last_index + 1) or "empty"
            base = (
                f" after {place(view.base_index, view.base_term)}" if view.base_index >= 0 else ""
            )
            self.lines.append(
                f"{node} {held}{base} commit={state.commit} synced={state.synced} term={state.term}"
            )

    def do_state(self, words: list[str], _: dict[str, str]) -> None:
        for node in self._nodes(words[0]):
            state = self.c.state(node)
            voters = ",".join(str(voter) for voter in state.voters) or "none"
            learners = ",".join(str(learner) for learner in state.learners)
            self.lines.append(
                f"{node} {state.role.name.lower()} term={state.term} vote={state.vote or 'none'}"
                f" leader={state.leader or 'none'} {state.standing.name.lower()} voters={voters}"
                + (f" learners={learners}" if learners else "")
            )

    def do_progress(self, words: list[str], _: dict[str, str]) -> None:
        for row in self.c.state(int(words[0])).progress.values():
            doubt = "" if row.is_counted else " uncounted"
            self.lines.append(
                f"{row.node} {row.state.name.lower()} match={row.match} next={row.next}{doubt}"
            )


CALLS: dict[str, Callable[[Cluster, list[str], dict[str, str]], object]] = {
    "join": lambda c, words, _: c.start_joining(int(words[0])),
    "restart": lambda c, words, _: c.restart(
        int(words[0]), recovering="recovering" in words, wiped="wiped" in words
    ),
    "sync": lambda c, words, options: c.sync(
        int(words[0]), through=int(options["through"]) if "through" in options else None
    ),
    "run": lambda c, _, options: c.tick_all(int(options["ticks"])),
    "hold": lambda c, words, _: c.held.update(map(link, words)),
    "release": lambda c, words, _: c.held.difference_update(map(link, words)),
    "cut": lambda c, words, _: c.cuts.update(map(link, words)),
    "heal": lambda c, _, __: c.heal(),
    "read": lambda c, words, _: c.read(int(words[0]), int(words[1])),
    "unreachable": lambda c, words, _: c.nodes[int(words[0])].replica.core.report_unreachable(
        int(words[1])
    ),
}
"""Commands that are one call of the cluster."""


def ids(word: str) -> tuple[int, ...]:
    return tuple(int(part) for part in word.split(",") if part)


def index_and_term(text: str) -> tuple[int, int]:
    """Read `3@1`, or `start`."""
    index, term = ("-1", "0") if text == "start" else text.split("@")
    return int(index), int(term)


def link(word: str) -> tuple[int, int]:
    sender, to = word.split("->")
    return int(sender), int(to)


def links(words: list[str]) -> list[tuple[int, int] | None]:
    """Return the named links, or one None that stands for all."""
    return [link(word) for word in words] or [None]
