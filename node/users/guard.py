"""The guard: whose call it is, whether that user may make it, and the end of calls that it may not
make any more.

Owns the way from a credential to a user, the check of a call against its needs, and the list of
calls under way, which a change of users or roles ends at once where it takes the right to them.
Must not know protocols: a port hands over what its callers showed. For one event loop.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from shlex import quote
from typing import Final, Literal, NamedTuple

from node.errors.common import NodeError
from node.errors.translation import describe
from node.errors.users import ForbiddenError, UnauthenticatedError
from node.runtime.accounts import Account
from node.runtime.accounts import caller as current_account
from node.users.calling import set_calling
from node.users.credentials import TOKEN_LENGTH_MAX, SecretBox, digest_of
from node.users.needs import NODE_CALLS, Needs, appends, of_nodes
from node.users.node_proofs import BadProofError
from node.users.rates import UserRow, UserRows
from node.users.rehearsal import Rehearsal
from node.users.rules import NAME_LENGTH_MAX, Action, ClusterPart, Need, ResourceKind
from node.users.users import NO_CREDENTIAL, NO_USERS, Credential, Rights, Users, standing_for
from raft.messages import NO_NODE, NodeId
from store.errors import Outcome
from store.record.topic_names import is_reserved


class Why(NamedTuple):
    """Why a caller is no user, for a person to read."""

    what: str
    why: str
    do: str


Mode = Literal["off", "prepare", "on"]
"""`prepare`: only calls of UserService are refused; of others is noted what `on` would refuse."""
BEARER: Final = "bearer "
"""How a header `authorization` with a token begins, in lower case."""
_APPEND: Final = "append"
_NO_CREDENTIAL: Final = Why(
    "the call shows no credential",
    "the cluster has users, and serves callers that prove to be one",
    "name the file of a token: qlog --token-file FILE, in a program connect(..., token=)",
)
_LOOK_S: Final = 1.0
_SLICE_COUNT: Final = 256
"""Calls that are judged again in one turn of the loop."""
_CHANGES: Final = frozenset({Action.CREATE, Action.UPDATE, Action.DELETE})
_REFUSALS: Final = (ForbiddenError, UnauthenticatedError)
_NO_SECRET: Final = b"\0" * 32
"""Signs in the place of a secret that is not there: both cases take the same time."""


class Caller:
    """A user that calls, or a caller without a credential, or a node of the cluster."""

    __slots__ = (
        *("_credential", "_identity", "_rights", "_row", "_users", "account"),
        *("guard", "host", "is_nobody", "is_node", "name", "peer_id", "watched", "why"),
    )

    def __init__(
        self,
        guard: "Guard",
        name: str,
        identity: str = "",
        credential: Credential = NO_CREDENTIAL,
        *,
        is_node: bool = False,
        peer_id: NodeId = NO_NODE,
        why: Why = _NO_CREDENTIAL,
    ) -> None:
        """`identity` is the id of the credential that it showed."""
        self.guard: Final = guard
        self.name: Final = name
        """Of the user; empty: none."""
        self.is_node: Final = is_node
        """It may make the calls of nodes and has no rights in its own name: no append, no pull."""
        self.peer_id: Final = peer_id
        """The node of this group that it is; NO_NODE: none, or of another group."""
        self.is_nobody: Final = not (name or is_node)
        self.why = why
        """Why it is no user."""
        self.watched = "" if guard.is_on else _APPEND
        """The call, if what `on` would refuse of it is only noted; empty: it is refused."""
        self._identity, self._credential = identity, credential
        self._users: Users | None = None
        self._rights: Rights | None = None
        """As of these users."""
        self._row: UserRow | None = None
        """Of the user, once its rights were looked at."""
        self.account: Account | None = None
        """Of its connection; None: not known."""
        self.host = ""
        """From where it calls, where there is no account."""

    @property
    def address(self) -> str:
        """From where it calls; empty: not known."""
        return self.host if self.account is None else self.account.address.what

    @property
    def ends(self) -> bool:
        """Whether its credential has an end."""
        return self._credential.expires_unix_ms > 0

    @property
    def rights(self) -> Rights:
        """What the user may do now. Raises UnauthenticatedError; NotReadyError if the node may not
        know all users yet."""
        users = self.guard.users
        if users is not self._users:
            self._users, self._rights = users, self._found(users)
        ends_unix_ms = self._credential.expires_unix_ms
        if ends_unix_ms and ends_unix_ms <= self.guard.unix_ms():
            self.why, self._rights = self._ended(ends_unix_ms), None
        if self._rights is None:
            raise self.guard.missing() or UnauthenticatedError(*self.why)
        return self._rights

    @property
    def _kind(self) -> str:
        one = self._credential
        return "token" if one.token_sha256 else "access key" if one.sealed_secret else "certificate"

    @property
    def _again(self) -> str:
        kind = self._kind.rpartition(" ")[2]
        return f"ask an admin for another one: qlog user {kind} add {self.name}"

    def _ended(self, unix_ms: int) -> Why:
        end = datetime.fromtimestamp(unix_ms / 1000, UTC).isoformat(timespec="seconds")
        why = f"it was given until {end}"
        return Why(f"the {self._kind} of user {self.name!r} has ended", why, self._again)

    def _found(self, users: Users) -> Rights | None:
        if not self.name:
            return None
        rights = users.get(self.name)
        if rights is None:
            disabled = self.name in users.users
            do = f"ask an admin to enable it: qlog user set {self.name} --enable"
            self.why = Why(
                f"user {self.name!r} {'is disabled' if disabled else 'was deleted'}",
                "a user that is disabled or deleted may not call",
                do if disabled else "ask an admin for another user",
            )
            return None
        # Without an identity a node of the cluster checked the credential.
        if self._identity and rights.user.credentials.get(self._identity) != self._credential:
            why = "an admin has removed or replaced it"
            self.why = Why(f"the {self._kind} was taken from user {self.name!r}", why, self._again)
            return None
        if self.guard.is_on:
            self._row = self.guard.rows.of(rights.user)
        return rights

    def may(self, need: Need) -> bool:
        """Whether it may do something now."""
        if self.is_node or self.watched:  # In a call of nodes: nothing else of it comes so far.
            return True
        try:
            return self.rights.decide(need).is_allowed
        except NodeError:
            return False

    def require(self, need: Need) -> None:
        """Raise ForbiddenError or UnauthenticatedError unless it may."""
        if self.watched:
            self._watch(need, self.watched)
        else:
            self._require(need)

    def _watch(self, need: Need, method: str) -> None:
        """Note a call that has not the right. That of no user was noted where it began."""
        if self.is_nobody:
            return
        try:
            self._require(need)
        except NodeError as error:
            self.guard.watch(self, method, error)

    def _require(self, need: Need) -> None:
        if self.rights.decide(need).is_allowed:
            return
        need = standing_for(need)
        shown = need._replace(name=need.name[:NAME_LENGTH_MAX])
        named = self.name, str(shown), str(need.action), str(shown.resource)
        raise ForbiddenError(*named, *self.rights.why_not(shown))

    def publish(
        self, queues: Iterable[tuple[bytes, int]], size_bytes: int = 0, message_count: int = 0
    ) -> None:
        """Raise as `require` unless it may publish to the topics of all these queues, and
        RateLimitedError unless it may do so now. Topics of the system are not looked at: no client
        writes to them."""
        if self.watched:
            for topic in {topic for topic, _ in queues}:
                name = topic.decode("utf-8", "replace")
                if not is_reserved(name):
                    self._watch(Need(Action.PUB, ResourceKind.TOPIC, name), _APPEND)
            return
        may_publish, row, account = self.rights.may_publish, self._row, self.account
        assert row is not None, "a user has a row"
        if account is not None and account.user is not row:
            row.connect(account)
        for topic, _ in queues:
            if topic not in may_publish:
                name = topic.decode("utf-8", "replace")
                if not is_reserved(name):
                    self.guard.require_publish(self, name)
                    may_publish.add(topic)
        if row.meter is not None:
            row.meter.take(size_bytes, message_count, 1)

    def spend(self, size_bytes: int, message_count: int) -> None:
        """Count what it publishes where no batch of its own is looked through. Raises
        RateLimitedError."""
        if self._row is not None and self._row.meter is not None:
            self._row.meter.take(size_bytes, message_count, 0)

    def begin(self, request_count: int) -> None:
        """Count its connection, and requests. Raises RateLimitedError."""
        row, account = self._row, self.account
        if row is None:
            return
        if account is not None and account.user is not row:
            row.connect(account)
        if row.meter is not None:
            row.meter.take(0, 0, request_count)

    def check_debt(self) -> None:
        """Raise RateLimitedError while it has moved more than its rates allow."""
        if self._row is not None and self._row.meter is not None:
            self._row.meter.check_debt()

    def reading_wait_s(self) -> float:
        """Return the seconds until `check_debt` passes."""
        meter = None if self._row is None else self._row.meter
        return 0.0 if meter is None else meter.wait_s()

    def received(self, size_bytes: int, message_count: int) -> None:
        """Count what it has read."""
        if self._row is not None and self._row.meter is not None:
            self._row.meter.spend(size_bytes, message_count)


class Guard:
    """One per node."""

    def __init__(
        self,
        mode: Mode,
        unix_ms: Callable[[], int],
        box: SecretBox | None = None,
    ) -> None:
        """`box` opens the secrets of access keys."""
        self.mode: Final[Mode] = mode
        self.users = NO_USERS
        """Those of the replicated state, as of the last `look`."""
        self.box: Final = box
        self.missing: Callable[[], NodeError | None] = lambda: None
        """Returns why this node may lack users of the cluster; None: it knows all."""
        self.rows: Final = UserRows()
        """The rates and connections of users at this node."""
        self.on_refused: Callable[[Caller, str, NodeError], None] = lambda _caller, _what, _e: None
        """Called with the caller, the call and the error of each refusal."""
        self.on_administered: Callable[[Caller, str, Need, object, str], None] = lambda *_: None
        """Called with the caller, the call, what it needs, the request and the code of its error,
        if there is one, at the end of each call that changes the cluster."""
        self.refused: Final[Counter[str]] = Counter({"unauthenticated": 0, "forbidden": 0})
        """Calls that were refused, by the last word of the code."""
        self.unix_ms = unix_ms
        self.rehearsal: Final = Rehearsal(unix_ms)
        self._sealed_warning: tuple[Users, tuple[str, ...]] = NO_USERS, ()
        self._secrets: dict[tuple[str, bytes], bytes | None] = {}
        """Opened secrets, by access key and sealed form."""
        self._under_way: dict[asyncio.Task[object], tuple[Caller, Sequence[Need]]] = {}
        """Calls that wait or stream, and what they need."""
        self._ended: dict[asyncio.Task[object], NodeError] = {}
        """Those that a change of rights has ended, with the error for their callers."""
        self._to_judge: deque[asyncio.Task[object]] = deque()
        """Calls that may be forbidden since a change of users, or the end of a credential."""

    @property
    def is_on(self) -> bool:
        """Whether calls are checked."""
        return self.mode == "on"

    # --- Who calls ---

    def by_token(self, token: str) -> Caller:
        """Return the caller that shows a bearer token."""
        if len(token) > TOKEN_LENGTH_MAX:
            what, why = "the token is unknown", f"it has more than {TOKEN_LENGTH_MAX} characters"
            return self._nobody(what, why, "show the one line that 'qlog user' wrote")
        if (owned := self.users.by_token.get(digest_of(token))) is not None:
            return Caller(self, *owned)
        why = "no user of this cluster has it, any more or yet"
        do = "check that it is of this cluster, or ask an admin: qlog user token add USER"
        return self._nobody("the token is unknown", why, do)

    def by_header(self, authorization: str) -> Caller:
        """Return the caller of an HTTP or gRPC header `authorization`; empty: there was none."""
        if not authorization:
            return Caller(self, "")
        if authorization[: len(BEARER)].lower() != BEARER:
            what = "the header authorization has another form than 'Bearer TOKEN'"
            return self._nobody(what, "a token is shown in that form", "correct the header")
        return self.by_token(authorization[len(BEARER) :].strip())

    def by_certificate(self, names: Iterable[str]) -> Caller:
        """Return the caller whose client certificate shows these names, as credentials have
        them; none of them: there is no certificate."""
        known, shown = self.users.by_certificate, list(names)
        for name in shown:
            if name in known:
                return Caller(self, *known[name])
        if not shown:
            return Caller(self, "")
        have = ", ".join(one[:NAME_LENGTH_MAX] for one in shown[:4])
        what = f"no user has the client certificate with the name {have}"
        do = f"ask an admin to add a name: qlog user certificate add USER {quote(shown[0][:99])}"
        return self._nobody(what, "the certificate shows no other, and the call no token", do)

    def by_signature(self, access_key: str, is_right: Callable[[bytes], bool]) -> Caller:
        """Return the caller that signed with an access key; `is_right` looks whether a secret made
        the signature."""
        owned = self.users.by_key.get(access_key)
        # An unknown key goes the way of one that is known, which takes as long.
        known = ("", NO_CREDENTIAL) if owned is None else (access_key, owned.credential)
        secret = self._secret(*known)
        signed = is_right(secret or _NO_SECRET)
        if owned is None or secret is None or not signed:
            what = f"access key {access_key[:64]!r} is unknown, or its secret is another one"
            why = "no user has the key, or the secret that the node keeps did not sign the call"
            do = "check both, or ask an admin: qlog user key add USER KEY --secret-file FILE"
            return self._nobody(what, why, do)
        return Caller(self, *owned)

    def by_name(self, name: str) -> Caller:
        """Return the caller for whom a node of the cluster speaks; empty: it has no credential."""
        return Caller(self, name)

    def node(self, peer_id: NodeId = NO_NODE) -> Caller:
        """Return the caller that proved to be a node of the cluster, and of this group."""
        why = Why("a node is no user", "it proved to be one of the cluster", "show a user's token")
        return Caller(self, "", is_node=True, peer_id=peer_id, why=why)

    def unproven(self, error: BadProofError) -> Caller:
        """Return the caller that shows a signature which is none."""
        what, do = f"the signature of the node {error}", "compare the secrets and clocks of both"
        return self._nobody(what, "nodes sign their calls with secret_file", do)

    def _secret(self, access_key: str, credential: Credential) -> bytes | None:
        key = access_key, credential.sealed_secret
        if key not in self._secrets:
            if len(self._secrets) > 10_000:
                self._secrets.clear()
            sealed = credential.sealed_secret
            self._secrets[key] = self.box.open(access_key, sealed) if self.box else None
        return self._secrets[key]

    def _nobody(self, what: str, why: str, do: str) -> Caller:
        return Caller(self, "", why=Why(what, why, do))

    def warnings(self) -> tuple[str, ...]:
        """Return that access keys are of no use at this node, or that `on` would refuse calls."""
        of, found = self._sealed_warning
        if of is not self.users:
            keys = self.users.by_key.items()
            count = sum(self._secret(key, owned.credential) is None for key, owned in keys)
            key = "the key of users_key_file" if self.box else "there is no users_key_file, which"
            found = (
                f"{key} does not open the secrets of {count} of {len(keys)} access keys: clients "
                "that sign with them are refused here; set the file that the other nodes have",
            )
            self._sealed_warning = self.users, (found if count else ())
        return self._sealed_warning[1] + self.rehearsal.warnings()

    # --- Whether it may ---

    def is_checked(self, method: str) -> bool:
        """Whether calls of a method are refused without the right; else that is noted only."""
        return self.is_on or (self.mode == "prepare" and method.startswith("UserService/"))

    def check(self, caller: Caller, method: str, needs: Sequence[Need] | None) -> None:
        """Raise ForbiddenError or UnauthenticatedError unless a caller may do all of this."""
        if caller.account is None:
            caller.account = current_account()
        caller.watched = "" if self.is_checked(method) else method
        try:
            if needs is not None:
                caller.rights  # noqa: B018 - it raises for a caller that is no user.
                for need in needs:
                    caller.require(need)
        except NodeError as error:
            self.refuse(caller, method, error)
            if not caller.watched:
                raise

    def needs_of(
        self, caller: Caller, method: str, row: Needs, request: object
    ) -> Sequence[Need] | None:
        """Return what a request needs of a caller; None: not even that it is a user."""
        is_of_nodes = row is of_nodes
        if caller.is_node and (is_of_nodes or method in NODE_CALLS):
            return None
        if caller.is_node or is_of_nodes:
            whose = "users" if caller.is_node else "nodes of the cluster"
            why = f"the credential is {'of a node' if caller.is_node else 'none of a node'}"
            what = f"only {whose} may make this call"
            error = UnauthenticatedError(what, why, "make another call, see docs/rights.md")
            if caller.is_nobody and caller.why is not _NO_CREDENTIAL:
                error = UnauthenticatedError(*caller.why)  # As of a node whose clock is wrong.
            caller.watched = "" if self.is_checked(method) else method
            self.refuse(caller, method, error)
            if caller.watched:
                return None
            raise error
        needs = row(request)
        return None if needs is None else tuple(needs)

    def require_publish(self, caller: Caller, topic: str) -> None:
        """Raise unless a caller may publish to a topic."""
        try:
            caller.require(Need(Action.PUB, ResourceKind.TOPIC, topic))
        except NodeError as error:
            self.refuse(caller, _APPEND, error)
            raise

    def refuse(self, caller: Caller, method: str, error: NodeError) -> None:
        """Count a refusal and tell of it, once; other errors are none."""
        if caller.watched:
            self.watch(caller, method, error)
        elif isinstance(error, _REFUSALS) and not error.is_noted:
            error.is_noted = True
            self.refused[error.code.rpartition(".")[2]] += 1
            self.on_refused(caller, method, error)

    def watch(self, caller: Caller, method: str, error: NodeError) -> None:
        """Note what would be a refusal if users were on."""
        if isinstance(error, _REFUSALS):
            self.rehearsal.note(caller.name, caller.address, method, error)

    # --- Calls under way ---

    @contextmanager
    def serving(
        self, caller: Caller, method: str, row: Needs, request: object, *, is_counted: bool = False
    ) -> Iterator[None]:
        """Check a call and run it in the name of its caller, until it may not make it any more.

        Raises as `check`; in the running task, also at the moment in which the right is taken; and
        RateLimitedError, unless its request `is_counted`."""
        if caller.account is None:  # Before a refusal of the next line, too.
            caller.account = current_account()
        needs = self.needs_of(caller, method, row, request)
        if self.is_on or not is_counted:  # Else the port has noted it.
            self.check(caller, method, needs)
        if caller.watched:
            set_calling(None, caller)
            yield
            return
        set_calling(caller)
        if needs is None:
            yield
            return
        caller.begin(0 if is_counted or row is appends else 1)
        code = ""
        task = asyncio.current_task()
        assert task is not None, "a call has a task"
        if not any(_changes_users(need) for need in needs):  # What it does may be to end its right.
            self._under_way[task] = caller, needs
        try:
            yield
        except asyncio.CancelledError:
            error = self._ended.pop(task, None)
            if error is None or task.uncancel() > 0:  # Its own caller has gone as well.
                code = "cancelled"
                raise
            code = error.code
            if row is appends or any(need.action in _CHANGES for need in needs):
                error.outcome = Outcome.UNKNOWN  # type: ignore[misc]  # It had begun.
            self.refuse(caller, method, error)
            raise error from None
        except Exception as error:
            # By a part that alone knows what the call touches, and may hide that it is there.
            for refusal in (error, error.__cause__):
                if isinstance(refusal, _REFUSALS):
                    self.refuse(caller, method, refusal)
                    needs = ()
            code = describe(error).code
            raise
        finally:
            self._under_way.pop(task, None)
            self._ended.pop(task, None)
            for need in needs:
                if need.action in _CHANGES:
                    self.on_administered(caller, method, need, request, code)
                    break

    def look(self, users: Users) -> None:
        """Take the users of the state; end the calls under way that they forbid. Called after each
        turn in which the state may have changed."""
        if users is not self.users:
            self.users = users
            self.rows.keep(users.users)
            self.end_forbidden(lambda _caller: True)

    async def run(self) -> None:
        """End the calls under way whose credentials have ended, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            self.end_forbidden(lambda caller: caller.ends)

    def end_forbidden(self, is_meant: Callable[[Caller], bool]) -> None:
        """End the calls under way of the callers that are meant and may not make them any more: in
        slices, the next one in the next turn of the loop. Those that begin meanwhile are checked as
        they begin. What earlier changes have left goes first, so no change delays it."""
        meant = [task for task, (caller, _) in self._under_way.items() if is_meant(caller)]
        is_judging = bool(self._to_judge)
        self._to_judge = deque(dict.fromkeys((*self._to_judge, *meant)))
        if not is_judging:
            self._judge()

    def _judge(self) -> None:
        count = min(len(self._to_judge), _SLICE_COUNT)
        tasks = [self._to_judge.popleft() for _ in range(count)]
        if self._to_judge:  # No task, which would have to be ended with the node.
            asyncio.get_running_loop().call_soon(self._judge)
        for task in tasks:
            caller, needs = self._under_way.get(task, (None, ()))
            if caller is None:
                continue  # It has ended.
            try:
                caller.rights  # noqa: B018
                for need in needs:
                    caller.require(need)
            except NodeError as error:
                if task not in self._ended:
                    self._ended[task] = error
                    task.cancel()


def _changes_users(need: Need) -> bool:
    is_of_users = need.kind is ResourceKind.CLUSTER and need.name == ClusterPart.USERS
    return is_of_users and need.action in _CHANGES
