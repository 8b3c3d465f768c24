"""The logins of a console whose cluster has users: who looks at a page, and with which token.

Owns the sessions: each is a client of the cluster with the token of its user, kept in memory only,
and known to the browser by a cookie. What a user may see the nodes decide. Must not know a page.
"""

import hashlib
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

import quorumlog
from qlog.console.cluster import Cluster
from qlog.console.shield import RefusedError
from quorumlog.admin.types import NodeDown
from quorumlog.errors import (
    DeadlineError,
    PermissionDeniedError,
    QuorumlogError,
    UnavailableError,
    UnimplementedError,
)

SESSION_COUNT_MAX: Final = 64
"""Above it the one ends that was used the longest ago: each holds connections."""
SESSIONS_OF_A_USER_MAX: Final = 8
"""Above it the same, so that one user does not end the sessions of others."""
SESSION_S: Final = 12 * 3_600
"""Life of a session."""
UNAUTHENTICATED: Final = "node.unauthenticated"
Connect = Callable[[str], quorumlog.Client]
"""Makes a client with the token of a user."""


class LoginNeededError(RefusedError):
    """The page needs a user, and the request shows no session that is good."""

    def __init__(self) -> None:
        super().__init__(401, "The cluster has users: log in with a token.")


class _Session(NamedTuple):
    user: str
    cluster: Cluster
    life: AsyncExitStack
    ends_s: float


class Logins:
    """All sessions of a console. For one event loop."""

    def __init__(
        self, cluster: Cluster, connect: Connect, port: int, *, is_certified: bool
    ) -> None:
        """`cluster` is what callers without a login see, where it lets them. `port` tells the
        cookies of several consoles of a host apart. `is_certified`: it shows a certificate, which
        may be that of a user, whose rights are not those of the callers."""
        self._cluster, self._connect = cluster, connect
        self._cookie = f"quorumlog_{port}"
        self._sessions: dict[bytes, _Session] = {}
        """By the digest of the cookie, the one used last at the end."""
        self._is_needed, self._is_certified = False, is_certified

    @asynccontextmanager
    async def caller(self, request: Request) -> AsyncIterator[Cluster]:
        """Yield the cluster as the caller may see it. Raises LoginNeededError, also where a node
        does not know the user within the block."""
        key = self._key(request)
        if (session := self._sessions.pop(key, None)) is not None:
            self._sessions[key] = session
            if session.ends_s <= time.monotonic():
                await self._end(key)
                raise LoginNeededError
        else:
            if self._is_needed:
                await self._look()
            if self._is_certified:
                await self._check_certificate()
        try:
            yield session.cluster if session is not None else self._cluster
        except QuorumlogError as error:
            if error.code != UNAUTHENTICATED:
                raise
            self._is_needed = True
            await self._end(key)
            raise LoginNeededError from error

    def has(self, request: Request) -> bool:
        """Whether the caller has logged in."""
        return self._key(request) in self._sessions

    async def log_in(self, token: str, request: Request, answer: Response) -> None:
        """Open a session, whose cookie goes with an answer. Raises QuorumlogError."""
        life = AsyncExitStack()
        try:
            client = await life.enter_async_context(self._connect(token))
            cluster = Cluster(client, is_full=self._cluster.is_full)
            user = ""
            try:
                await cluster.status()
            except PermissionDeniedError as error:
                if error.code == UNAUTHENTICATED:
                    raise
                if answer.headers["location"] == "/":  # It may not see the nodes.
                    answer.headers["location"] = "/topics"
            with suppress(UnavailableError, DeadlineError):  # Without a leader it goes on unnamed.
                user = (await client.admin.who_am_i()).name
        except BaseException:
            await life.aclose()
            raise
        await self.log_out(request)
        own = [key for key, session in self._sessions.items() if session.user == user]
        for key in own[: max(0, len(own) + 1 - SESSIONS_OF_A_USER_MAX)]:
            await self._end(key)
        while len(self._sessions) >= SESSION_COUNT_MAX:
            await self._end(next(iter(self._sessions)))
        cookie = secrets.token_urlsafe(32)
        self._sessions[_digest(cookie)] = _Session(
            user, cluster, life, time.monotonic() + SESSION_S
        )
        is_secure = request.url.scheme == "https"
        answer.set_cookie(self._cookie, cookie, httponly=True, samesite="strict", secure=is_secure)

    async def log_out(self, request: Request) -> None:
        """End the session of a caller, if there is one."""
        await self._end(self._key(request))

    async def close(self) -> None:
        """End all sessions."""
        for key in list(self._sessions):
            await self._end(key)

    async def _end(self, key: bytes) -> None:
        session = self._sessions.pop(key, None)
        if session is not None:
            await session.life.aclose()

    def _key(self, request: Request) -> bytes:
        return _digest(request.cookies.get(self._cookie, ""))

    async def _look(self) -> None:
        """Raise LoginNeededError unless a node says that the cluster has no users any more."""
        try:
            status = await self._cluster.status()
        except QuorumlogError:
            raise LoginNeededError from None
        if all(isinstance(node, NodeDown) for node in status.nodes):
            raise LoginNeededError
        self._is_needed = False

    async def _check_certificate(self) -> None:
        """Raise LoginNeededError if users are on: the certificate of the console is of one."""
        try:
            found = await self._cluster.shared("whoami", self._cluster.client.admin.who_am_i)
        except (PermissionDeniedError, UnimplementedError):
            return  # It is of none, or the nodes have none yet.
        if found.mode == "on":
            raise LoginNeededError


def _digest(cookie: str) -> bytes:
    return hashlib.sha256(cookie.encode("utf-8", "surrogatepass")).digest()
