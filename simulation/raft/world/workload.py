"""Clients: they append, put, read and poll, retry, follow hints, give up, and record all of it.

Owns the honest classification of outcomes: `not_applied` only when every attempt was refused before
it entered a log, `unknown` as soon as one attempt may have entered one (fault-matrix 9.1). A retry
sends the same value, which the state machine takes once. Must not know a replica's treatment of it.
"""

from __future__ import annotations

from enum import IntEnum
from random import Random
from typing import TYPE_CHECKING, Any

from checkers.history import (
    AppendCall,
    CasCall,
    HistoryReceipt,
    Kind,
    Operation,
    ReadCall,
    Records,
    Request,
    Result,
    Seen,
    Swapped,
)
from raft.errors import Outcome
from raft.messages import NO_NODE, Index, NodeId
from raft.pump.effects import Resolution
from simulation.raft.ledger import ANYTHING, CasBody
from simulation.raft.verdict import InvariantError

if TYPE_CHECKING:
    # A circle of types: a world makes its parts, and they act on it and on each other.
    from simulation.raft.world.process import Process
    from simulation.raft.world.world import World

QUEUE = "log"
REGISTER = "register"
POLL_COUNT_MAX = 8
ATTEMPT_ELECTIONS = 2
"""Election time-outs after which an attempt is given up; a call, after three times that."""
REQUEST_LOSS = 0.03
CELL_CALL_COUNT_MAX = 40
CELL_UNKNOWN_COUNT_MAX = 3


class CallKind(IntEnum):
    APPEND = 0
    PUT = 1
    TAIL = 2
    GET = 3
    SWAP = 4
    """Compare and set, or set unconditionally."""
    LOOK = 5
    """Read a compare-and-set register."""


_KINDS = (Kind.APPEND, Kind.PUT, Kind.TAIL, Kind.GET, Kind.CAS, Kind.CAS)
WRITES = (CallKind.APPEND, CallKind.PUT, CallKind.SWAP)
_CELL_VALUE_COUNT = 4
"""Number of values of a register. Few, so that swaps often find the expected one."""


class SimulatedCall:
    """One call of a client: one or more attempts at different nodes."""

    __slots__ = (
        "attempt",
        "body",
        "client",
        "deadline_us",
        "floor",
        "invoke_us",
        "is_doubtful",
        "is_open",
        "kind",
        "node",
        "value",
    )

    def __init__(self, client: SimulatedClient, kind: CallKind, value: int) -> None:
        self.client = client
        self.kind = kind
        self.value = value
        self.body: int | CasBody = value
        """Body of the log entry."""
        self.invoke_us = client.world.now
        self.deadline_us = self.invoke_us + 3 * client.attempt_us
        self.attempt = 0
        self.is_open = True
        self.is_doubtful = False
        """Whether an attempt may have entered a log, with unknown outcome."""
        self.node: NodeId = NO_NODE
        self.floor = client.world.acked_end
        """Queue length that was acked to a client before this call began (I10)."""


class SimulatedClient:
    """One client with one call open at a time."""

    __slots__ = (
        "attempt_us",
        "call",
        "is_stopped",
        "loyalty",
        "poll_offset",
        "polls_only",
        "process",
        "random",
        "target",
        "world",
    )

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.process = world.new_process_number()
        self.random = Random(world.options.seed * 2003 + number)
        self.loyalty = self.random.choice((0.0, 0.5, 0.95))
        """Probability that the client stays with a node that did not answer."""
        self.target: NodeId = 1 + number % world.options.voter_count
        self.call: SimulatedCall | None = None
        self.attempt_us = ATTEMPT_ELECTIONS * world.options.election_us
        self.poll_offset = 0
        self.is_stopped = False
        self._later()

    def _later(self) -> None:
        world = self.world
        pause = 1 + int(self.random.expovariate(1 / world.options.think_us))
        world.push(world.now + pause, self._begin, None, None, None)

    def _begin(self, _a: object, _b: object, _c: object) -> None:
        if self.is_stopped or self.call is not None:
            return
        random = self.random
        cas_share = self.world.options.cas_share
        if cas_share and random.random() < cas_share:
            self.call_now(CallKind.LOOK if random.random() < 0.3 else CallKind.SWAP)
            return
        draw = random.random()
        share = self.world.options.read_share
        if draw < share / 3:
            self._poll()
            self._later()
            return
        if draw < share:
            kind = CallKind.GET if random.random() < 0.3 else CallKind.TAIL
        else:
            kind = CallKind.PUT if random.random() < 0.2 else CallKind.APPEND
        self.call_now(kind)

    def call_now(self, kind: CallKind) -> SimulatedCall:
        """Start one call."""
        value = self.world.new_value() << 1 | (kind is CallKind.PUT)
        self.call = call = SimulatedCall(self, kind, value)
        if kind is CallKind.SWAP or kind is CallKind.LOOK:
            expected = self.random.randrange(ANYTHING, _CELL_VALUE_COUNT)
            new = self.random.randrange(_CELL_VALUE_COUNT)
            call.body = CasBody(value, self.world.cells.key(), expected, new)
        self._attempt(call)
        return call

    def _poll(self) -> None:
        """Read on from this reader's position, on any replica, without asking the leader."""
        world = self.world
        node = world.nodes.get(self.random.choice(world.reachable))
        if node is None or not node.is_up:
            return
        ledger = world.referee.ledger
        end = ledger.end_at(node.applied)
        offset = self.poll_offset
        found = ledger.queue[offset : min(end, offset + POLL_COUNT_MAX)] if offset < end else []
        records = tuple(enumerate(found, offset))
        self.poll_offset += len(records)
        now = world.now
        self._record(
            Kind.POLL,
            QUEUE,
            (now, now),
            Outcome.APPLIED,
            ReadCall(offset, POLL_COUNT_MAX),
            Records(records, end),
        )

    def _attempt(self, call: SimulatedCall) -> None:
        world = self.world
        call.attempt += 1
        call.node = self.target
        world.push(world.now + self.attempt_us, self._timed_out, call, call.attempt, None)
        if not world.is_calm and self.random.random() < REQUEST_LOSS:
            return
        delay = 1 + self.random.randrange(1000)
        world.push(world.now + delay, self._arrive, call, call.attempt, call.node)

    def _arrive(self, call: SimulatedCall, attempt: int, node: NodeId) -> None:
        found = self.world.nodes.get(node)
        if found is None:
            self.refused(call, attempt, NO_NODE)
        else:
            found.serve(call, attempt)

    # Replies.

    def refused(self, call: SimulatedCall, attempt: int, hint: NodeId) -> None:
        """Take a refusal before any entry was in the node's log."""
        self._reply(call, attempt, Outcome.NOT_APPLIED, hint)

    def completed(
        self, call: SimulatedCall, attempt: int, resolution: Resolution, node: Process
    ) -> None:
        """Take the decision on a proposal."""
        if resolution is Resolution.COMMITTED:
            ledger = self.world.referee.ledger
            is_swap = call.kind is CallKind.SWAP
            placed = (ledger.swapped if is_swap else ledger.offset_of).get(call.value)
            if placed is None:
                raise InvariantError("R38", f"{node} acks {call.value}, which is not in the log")
            self._reply(call, attempt, Outcome.APPLIED, placed)
        elif resolution is Resolution.NOT_APPLIED:
            self.world.coverage.hit("waiter_not_applied")
            self._reply(call, attempt, Outcome.NOT_APPLIED, NO_NODE)
        else:
            self._reply(call, attempt, Outcome.UNKNOWN, NO_NODE)

    def served(self, call: SimulatedCall, attempt: int, applied: Index) -> None:
        """Answer a linearizable read from the state at `applied`."""
        ledger = self.world.referee.ledger
        end = ledger.end_at(applied)
        if end < call.floor:
            raise InvariantError("I10", f"a read saw end {end}, {call.floor} was acked before it")
        result: int | Swapped = end if call.kind is CallKind.TAIL else applied
        if call.kind is CallKind.LOOK:
            assert isinstance(call.body, CasBody)
            result = Swapped(False, ledger.cell_at(call.body.key, applied))
        self._reply(call, attempt, Outcome.APPLIED, result)

    def _reply(
        self, call: SimulatedCall, attempt: int, outcome: Outcome, result: int | Swapped
    ) -> None:
        world = self.world
        if not world.is_calm and self.random.random() < REQUEST_LOSS:
            return
        delay = 1 + self.random.randrange(1000)
        world.push(world.now + delay, self._on_reply, call, attempt, (outcome, result))

    def _on_reply(self, call: SimulatedCall, attempt: int, reply: tuple[Outcome, Any]) -> None:
        if not call.is_open:
            return
        outcome, result = reply
        if outcome is Outcome.APPLIED:
            self._finish(call, outcome, result)
            return
        if outcome is Outcome.UNKNOWN:
            call.is_doubtful = True
        if attempt == call.attempt:
            self._retry(call, result if outcome is Outcome.NOT_APPLIED else NO_NODE)

    def _timed_out(self, call: SimulatedCall, attempt: int, _c: object) -> None:
        if call.is_open and attempt == call.attempt:
            call.is_doubtful = True
            self._retry(call, NO_NODE)

    def _retry(self, call: SimulatedCall, hint: NodeId) -> None:
        world = self.world
        random = self.random
        is_over = world.now >= call.deadline_us
        if is_over or (not world.is_calm and random.random() >= world.options.patience):
            doubtful = call.is_doubtful and call.kind in WRITES
            self._finish(call, Outcome.UNKNOWN if doubtful else Outcome.NOT_APPLIED, 0)
            return
        if hint != NO_NODE:
            self.target = hint
        elif world.is_calm or random.random() >= self.loyalty:
            self.target = random.choice(world.reachable)
        call.attempt += 1  # From now on only a success of the old attempt matters.
        pause = 1 + int(random.random() * world.options.election_us / 4)
        world.push(world.now + pause, self._try_again, call, call.attempt, None)

    def _try_again(self, call: SimulatedCall, attempt: int, _c: object) -> None:
        if call.is_open and attempt == call.attempt:
            self._attempt(call)

    def _finish(self, call: SimulatedCall, outcome: Outcome, result: Any) -> None:
        call.is_open = False
        self.call = None
        world = self.world
        if call.invoke_us <= world.loss_us and outcome is Outcome.APPLIED:
            # Answered from the state before the loss or after it: unknown.
            outcome = Outcome.UNKNOWN if call.kind in WRITES else Outcome.NOT_APPLIED
        self._write_down(call, outcome, result)
        if call.kind is CallKind.APPEND:
            world.count_append(outcome, result)
        elif call.kind is CallKind.SWAP:
            world.cells.count(outcome)
        if outcome is Outcome.UNKNOWN:
            self.process = world.new_process_number()
            self.poll_offset = 0
        self._later()

    def _write_down(self, call: SimulatedCall, outcome: Outcome, result: Any) -> None:
        world = self.world
        kind = call.kind
        is_applied = outcome is Outcome.APPLIED
        request: Request = None
        answer: Result = None
        if kind is CallKind.APPEND:
            request = AppendCall(call.value, self.process, call.value)
            answer = HistoryReceipt(result) if is_applied else None
        elif kind is CallKind.PUT:
            request = call.value
            answer = result if is_applied else None
        elif isinstance(call.body, CasBody):
            request = _request_of(call)
            answer = result if is_applied else None
        elif is_applied:
            world.coverage.hit("read_served")
            answer = result
            if kind is CallKind.GET:
                answer = Seen(*world.referee.ledger.register_at(result))
        span = (call.invoke_us, None if outcome is Outcome.UNKNOWN else world.now)
        queue = REGISTER if kind is CallKind.PUT or kind is CallKind.GET else QUEUE
        if isinstance(call.body, CasBody):
            queue = f"cell {call.body.key}"
        self._record(_KINDS[kind], queue, span, outcome, request, answer)

    def _record(
        self,
        kind: Kind,
        queue: str,
        span: tuple[int, int | None],
        outcome: Outcome,
        request: Request,
        result: Result,
    ) -> None:
        history = self.world.history
        invoke_us, return_us = span
        history.append(
            Operation(
                len(history),
                self.process,
                kind,
                queue,
                invoke_us * 1000,
                None if return_us is None else return_us * 1000,
                outcome,
                request,
                result,
                self.target,
            )
        )

    def note_open_call(self) -> None:
        """Record the open call as one of unknown outcome, and keep it open."""
        call = self.call
        if call is not None and call.kind in WRITES:
            self._write_down(call, Outcome.UNKNOWN, None)

    def start_over(self, queue_end: int) -> None:
        """Begin again after a loss of acked entries: an open call expects only the rest."""
        self.process = self.world.new_process_number()
        self.poll_offset = 0
        if self.call is not None:
            self.call.floor = min(self.call.floor, queue_end)

    def give_up(self) -> None:
        """Record the open call as it is at the end of the run."""
        self.is_stopped = True
        call = self.call
        if call is not None:
            is_write = call.kind in WRITES
            self._finish(call, Outcome.UNKNOWN if is_write else Outcome.NOT_APPLIED, 0)


def _request_of(call: SimulatedCall) -> CasCall:
    assert isinstance(call.body, CasBody)
    expected = None if call.body.expected == ANYTHING else call.body.expected
    return CasCall(expected, None if call.kind is CallKind.LOOK else call.body.new)


class Cells:
    """Choice of the compare-and-set register in use: each gets few calls, since searching for an
    order of many is expensive, and even fewer calls of unknown outcome."""

    __slots__ = ("_begun", "_key", "_unknown")

    def __init__(self) -> None:
        self._key = 0
        self._begun = 0
        self._unknown = 0

    def key(self) -> int:
        """Return the register for a new call."""
        if self._begun >= CELL_CALL_COUNT_MAX or self._unknown >= CELL_UNKNOWN_COUNT_MAX:
            self.turn_over()
        self._begun += 1
        return self._key

    def turn_over(self) -> None:
        """Continue with a new register."""
        self._key += 1
        self._begun = self._unknown = 0

    def count(self, outcome: Outcome) -> None:
        """Note the end of a call."""
        self._unknown += outcome is Outcome.UNKNOWN


class SimulatedReads:
    """Call of each open read id; ids are integers, as the core requires."""

    __slots__ = ("_next", "_open")

    def __init__(self) -> None:
        self._next = 0
        self._open: dict[int, tuple[SimulatedCall, int]] = {}

    def register(self, call: SimulatedCall, attempt: int) -> int:
        self._next += 1
        self._open[self._next] = (call, attempt)
        return self._next

    def serve(self, read_id: int, applied: Index) -> None:
        call, attempt = self._open.pop(read_id)
        call.client.served(call, attempt, applied)

    def fail(self, read_id: int) -> None:
        call, attempt = self._open.pop(read_id)
        call.client.refused(call, attempt, NO_NODE)
