"""The audit: who changed the cluster and who was refused, as messages of a system topic.

Owns the form of a row, how many wait, and their way into the log of the leader. A row has neither
secrets nor bodies of messages. What a node could not write before it stopped is lost; a row whose
outcome was not known, as at a change of leaders, may be there twice. For one event loop.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

from node.broker.append.own_appends import OwnAppends
from node.broker.core.context import Context
from node.errors.common import BadRequestError, NodeError
from node.errors.users import UsersOffError
from node.runtime.json_text import dump_json
from node.runtime.logs.rate_limited_log import RateLimitedLog
from node.users.calling import calling
from node.users.guard import Caller
from node.users.rates import Bucket, Unit
from node.users.rules import ClusterPart, Need, ResourceKind, rule_of
from quorumlog.foreign_json import read_json
from quorumlog.pb.state_pb2 import Command
from quorumlog.pb.users_pb2 import (
    HandAuditRequest,
    HandAuditResponse,
    PutRoleRequest,
    PutUserRequest,
    Rule,
)
from raft.messages import NO_NODE, NodeId
from store.errors import StoreError
from store.format import AUDIT_TOPIC
from store.record.message import encode_message

WAITING_COUNT_MAX: Final = 1_000
SHARE_COUNT_MAX: Final = WAITING_COUNT_MAX // 4
"""Waiting rows of one user, one address without one, or the rehearsal; only changes that succeeded
go beyond it."""
REFUSALS_PER_SECOND: Final = 20
"""Of one user, or of one address without one, with changes that failed."""
STRANGERS_PER_SECOND: Final = 100
"""Of all addresses."""
CALLERS_MAX: Final = 1_000
"""Whose refusals are counted; the one that came first is forgotten then."""
DONE: Final = "ok"
"""The outcome of a call without an error."""
REHEARSALS_PER_SECOND: Final = 10
"""Of all users and addresses."""
REHEARSED: Final = "prepare."
"""How the outcome of a call begins that `users = on` would have refused."""
_AT_ONCE_COUNT_MAX: Final = 100
"""Rows of one entry of the log."""
_TEXT_LENGTH_MAX: Final = 1_000
"""Characters that say what changes, with names that a caller sent."""
_ROW_SIZE_BYTES_MAX: Final = 8 * 1024
_HEAD_SIZE_BYTES_MAX: Final = 256
"""Of the record of a row."""
_OBJECTS: Final = ("name", "node_id", "namespace", "key")
"""Fields of requests that name what is changed of the cluster."""
_KINDS: Final = {"token_sha256": "token", "certificate": "certificate"}
"""Kinds of credentials by their proofs; others are access keys."""
_NUMBERS: Final = ("unix_ms", "node_id", "count", "left_out")
_TEXTS: Final = ("user", "call", "resource", "address", "outcome")
"""Fields of a row."""
_NUMBER_MAX: Final = (1 << 53) - 1
_AGAIN_S: Final = 1.0
_log: Final = RateLimitedLog(logging.getLogger(__name__))

_Whose = tuple[str, str]
"""Of a row: a user, or an address without one."""
_REHEARSAL: Final[_Whose] = "", REHEARSED
"""Whose all rows of the rehearsal are."""
HandOver = Callable[[str, HandAuditRequest], Awaitable[None]]
"""Gives rows to the leader at an address. Raises NodeError."""


class Audit:
    """The rows of one node that are not in the log yet."""

    def __init__(self, context: Context, own_appends: OwnAppends, *, is_on: bool) -> None:
        self._context: Final = context
        self._own_appends, self._is_on = own_appends, is_on
        self._rows: Final[deque[tuple[_Whose, bytes]]] = deque()
        self._has_rows = asyncio.Event()
        self._refusals: dict[_Whose, Bucket] = {}
        """What is left to each user, and to each address of callers that are none."""
        now_s = context.clock_ms() / 1000
        self._of_strangers = Bucket(Unit.REQUESTS, STRANGERS_PER_SECOND, now_s)
        self._of_rehearsal = Bucket(Unit.REQUESTS, REHEARSALS_PER_SECOND, now_s)
        self._left_out_count = 0
        """Since the last row."""
        self.written_total = self.left_out_total = 0

    def note_refusal(self, caller: Caller, call: str, error: NodeError) -> None:
        """Note a call that was refused, unless its caller had too many."""
        self._note_failed(caller, call, str(getattr(error, "resource", "")), error.code)

    def _note_failed(self, caller: Caller, call: str, resource: str, code: str) -> None:
        """Note a call that was refused or failed, unless its user had too many in this second or
        has too many that wait, or without one its address or all of them. So no flood of one
        caller hides what another one tried."""
        now_s, whose = self._context.clock_ms() / 1000, _whose(caller)
        bucket = self._refusals.get(whose)
        if bucket is None:
            bucket = self._refusals[whose] = Bucket(Unit.REQUESTS, REFUSALS_PER_SECOND, now_s)
            if len(self._refusals) > CALLERS_MAX:
                del self._refusals[next(iter(self._refusals))]
        buckets = [bucket] if caller.name else [bucket, self._of_strangers]
        has_room = caller.name or len(self._rows) < WAITING_COUNT_MAX // 2
        if has_room and self._take(whose, buckets):
            self._note(whose, caller.name, caller.address, call, resource, code)
        else:
            self.leave_out()

    def _take(self, whose: _Whose, buckets: Sequence[Bucket]) -> bool:
        """Take one from each of the buckets, if all have it and the share of `whose` has room."""
        now_s = self._context.clock_ms() / 1000
        if not all(one.fill(now_s) for one in buckets):
            return False
        for one in buckets:
            one.left -= 1
        return sum(one == whose for one, _ in self._rows) < SHARE_COUNT_MAX

    def note_change(
        self, caller: Caller, call: str, need: Need, request: object, code: str
    ) -> None:
        """Note the end of a call that changes the cluster; `code` of its error, or empty."""
        names = [f"{need.kind}:{need.name}"]
        if need.kind is ResourceKind.CLUSTER:
            names += [str(getattr(request, field, "")) for field in _OBJECTS]
        if isinstance(request, PutUserRequest):
            names += _changes_of_user(request)
        elif isinstance(request, PutRoleRequest):
            names.append("; ".join(map(_rule_text, request.rules)))
        resource = " ".join(filter(None, names))
        if code:
            self._note_failed(caller, call, resource, code)
        else:
            self._note(_whose(caller), caller.name, caller.address, call, resource, DONE)

    def note_made(self, work: str, put: Command.PutUser) -> None:
        """Note a user that the leader made of a file."""
        text = f"Cluster:{ClusterPart.USERS} {put.user.name} roles={','.join(put.user.roles)}"
        text += f" reset_id={put.reset_id.hex()}" if put.reset_id else ""
        self._note(("", ""), "", "", work, text, DONE)

    def note_rehearsal(
        self, user: str, address: str, call: str, error: NodeError, count: int
    ) -> bool:
        """Note calls that were answered, and that `users = on` would have refused; return whether
        there was room for their row."""
        has_room = len(self._rows) < WAITING_COUNT_MAX
        if not (has_room and self._take(_REHEARSAL, [self._of_rehearsal])):
            return False
        outcome = REHEARSED + error.code.rpartition(".")[2]
        resource = str(getattr(error, "resource", ""))
        self._note(_REHEARSAL, user, address, call, resource, outcome, count)
        return True

    def _note(
        self,
        whose: _Whose,
        user: str,
        address: str,
        call: str,
        resource: str,
        outcome: str,
        count: int = 1,
    ) -> None:
        if len(self._rows) >= WAITING_COUNT_MAX:
            self.leave_out()
            return
        if len(resource) > _TEXT_LENGTH_MAX:
            resource = resource[: _TEXT_LENGTH_MAX - 3] + "..."
        row = {
            "unix_ms": self._context.unix_ms(),
            "node_id": self._context.driver.node_id,
            "user": user,
            "call": call,
            "resource": resource,
            "address": address,
            "outcome": outcome,
            "count": count,
            "left_out": self._left_out_count,
        }
        self._left_out_count = 0
        self._rows.append((whose, dump_json(row)))
        self._has_rows.set()

    def leave_out(self) -> None:
        """Count a row that is too much."""
        self._left_out_count += 1
        self.left_out_total += 1

    async def run(self, hand_over: HandOver) -> None:
        """Bring the rows into the log, until cancelled."""
        while True:
            await self._has_rows.wait()
            rows = self._next()
            try:
                await self._write(rows, hand_over)
            except (NodeError, StoreError) as error:
                _log.warn("the audit waits", f"{len(self._rows)} rows: {error}")
                await asyncio.sleep(_AGAIN_S)
                continue
            for _ in rows:
                self._rows.popleft()
            if not self._rows:
                self._has_rows.clear()

    def _next(self) -> list[bytes]:
        """Return the first rows, as many as fit into an entry with their heads; at least one."""
        room_bytes, rows = self._own_appends.entry_size_bytes_max, list[bytes]()
        for _, row in islice(self._rows, _AT_ONCE_COUNT_MAX):
            room_bytes -= len(row) + _HEAD_SIZE_BYTES_MAX
            if rows and room_bytes < 0:
                break
            rows.append(row)
        return rows

    async def _write(self, rows: list[bytes], hand_over: HandOver) -> None:
        context = self._context
        leader_id = context.driver.leader_id
        if leader_id in (NO_NODE, context.driver.node_id):
            await self._append(rows)  # Raises if this node does not lead.
        else:
            request = HandAuditRequest(rows=rows)
            await hand_over(context.address_of(leader_id), request)

    async def _append(self, rows: Iterable[bytes]) -> None:
        host, now_ms = self._context.store.config.store_host, self._context.unix_ms()
        records = [
            encode_message(AUDIT_TOPIC, 0, row, born_unix_ms=now_ms, store_host=host)
            for row in rows
        ]
        await self._own_appends.write(b"".join(records), ())
        self.written_total += len(records)

    async def hand_audit(self, request: HandAuditRequest) -> HandAuditResponse:
        """Write rows about calls of the node that hands them. Raises NotLeaderError and as
        `OwnAppends.write`."""
        if not self._is_on:
            raise UsersOffError
        self._context.check_count("rows", len(request.rows), _AT_ONCE_COUNT_MAX, 1)
        caller = calling()
        node_id = NO_NODE if caller is None else caller.peer_id
        if node_id == NO_NODE or not all(_is_row(row, node_id) for row in request.rows):
            what = f"calls at node {node_id}, of at most {_ROW_SIZE_BYTES_MAX} bytes each"
            raise BadRequestError("rows", what, "others")
        await self._append(request.rows)
        return HandAuditResponse()


def _whose(caller: Caller) -> _Whose:
    return caller.name, "" if caller.name else caller.address


def _changes_of_user(request: PutUserRequest) -> Iterator[str]:
    """Yield what a request changes, in words: of credentials their ids and ends."""
    if request.HasField("roles"):
        yield f"roles={','.join(request.roles.roles)}"
    for added in request.add_credentials:
        kind = _KINDS.get(added.WhichOneof("proof") or "", "key")
        end = f" until {added.expires_unix_ms}" if added.expires_unix_ms else ""
        yield f"+{kind} {added.id} {added.certificate}".rstrip() + end
    yield from (f"-{identity}" for identity in request.remove_credentials)
    if request.HasField("rates"):
        rates = ((field.name, value) for field, value in request.rates.ListFields())
        yield "rates=" + (",".join(f"{name}:{value}" for name, value in rates) or "none")
    if request.HasField("is_disabled"):
        yield "disabled" if request.is_disabled else "enabled"


def _rule_text(rule: Rule) -> str:
    """Return a rule as it is stored, or as it came if it cannot be."""
    try:
        return str(rule_of(rule.deny, rule.resource, rule.actions))
    except ValueError:
        return f"{'DENY' if rule.deny else 'ALLOW'} {rule.resource} {','.join(rule.actions)}"


def _is_row(encoded: bytes, node_id: NodeId) -> bool:
    """Whether this is a row about a call at a node."""
    try:
        row = read_json(encoded) if len(encoded) <= _ROW_SIZE_BYTES_MAX else None
    except ValueError:
        return False
    if not isinstance(row, dict) or row.get("node_id") != node_id:
        return False
    numbers = [row.get(name) for name in _NUMBERS]
    are_numbers = all(type(one) is int and 0 <= one <= _NUMBER_MAX for one in numbers)
    return are_numbers and all(isinstance(row.get(name), str) for name in _TEXTS)
