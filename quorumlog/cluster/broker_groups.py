"""The broker groups of a cluster: the list of groups, their state, and callbacks on changes.

Owns the list of groups and its refresh; must not know how the groups are used. A broker group is a
log of its own, with its own nodes and leader, and serves its share of the queues of every topic.
Each given node tells its group, and every answer to a question for routes names the other groups
(the name server's knowledge, which is advice): a group that is named, or that answers, is listed. A
group for which neither is true for a minute is left out until it is back.

A listed group gets messages and gives receipts for them, so it must be vouched for: by the caller,
with an address of one of its nodes, or by a node of a group that the caller pointed at, which names
it and is of the same cluster. Groups vouch neither for themselves nor for each other: a group that
was not vouched for during a minute is left out, even if it answers.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from quorumlog.arguments import check_text
from quorumlog.cluster.calls import Calls
from quorumlog.cluster.channels import Channels, Credentials
from quorumlog.cluster.full_disks import FullDisks
from quorumlog.cluster.retry import Backoff, Deadline
from quorumlog.cluster.routes import BOOTSTRAP_MAX, OnSearch, Route, Router
from quorumlog.cluster.transport import Transport
from quorumlog.errors import (
    ConnectTimeoutError,
    DeadlineError,
    InvalidRequestError,
    QuorumlogError,
    UnavailableError,
)
from quorumlog.pb import log_pb2

_log = logging.getLogger("quorumlog.client")
CONNECT_ATTEMPT_MS: Final = 2_000
ATTEMPT_MS: Final = 1_000
REFRESH_MS: Final = 10_000  # Nodes learn of a new group at once; this is often enough for 30 s.
REFRESH_FIRST_MS: Final = 1_000  # Nodes that were just started learn of each other meanwhile.
PROBE_MS: Final = 250
GONE_AFTER_S: Final = 60.0
GROUPS_MAX: Final = 32
REFRESHED_TOPICS_MAX: Final = 1_000  # Topics of one group in one question.


class BrokerGroup:
    """One group, as this client knows it."""

    def __init__(self, router: Router, calls: Calls, *, is_pointed_at: bool = False) -> None:
        self.router: Final = router
        self.calls: Final = calls
        self.is_pointed_at = is_pointed_at  # The caller gave a node of it: it may vouch for others.
        self.disowned_s: float | None = None  # Since when it is not vouched for.
        self.is_away = False  # The group does not answer; a task asks until it does.
        self.named_s = time.monotonic()  # When a node named it last.

    @property
    def name(self) -> str:
        return self.router.group

    @property
    def seen_s(self) -> float:
        """Time of the last answer or mention, on the monotonic clock."""
        return max(self.named_s, self.router.answered_s)

    def __repr__(self) -> str:
        return f"<BrokerGroup {self.name or '(unnamed)'}{', away' if self.is_away else ''}>"


class BrokerGroups:
    """All groups of the cluster. Belongs to one event loop."""

    def __init__(
        self,
        bootstrap: Sequence[str],
        cluster_id: str | None,
        credentials: Credentials,
        transport: Transport = "auto",
        token: str = "",
    ) -> None:
        self.all: tuple[BrokerGroup, ...] = ()
        """The groups that are not left out, by name; never empty."""
        self.bootstrap = tuple(bootstrap)
        self.on_change: list[Callable[[], None]] = []
        """Called when a group came, was left out, went away or is back."""
        self.on_search: OnSearch = lambda _: None
        self._credentials = credentials
        self._transport: Transport = transport
        self._token = token
        self._full_disks = FullDisks()
        self._surveyed: set[str] = set()  # Addresses in `bootstrap` of nodes of other groups.
        self._known: dict[str, BrokerGroup] = {}  # Also the groups that were left out.
        self._first = self._make("", self.bootstrap, cluster_id, is_pointed_at=True)
        self.all = (self._first,)
        self._refreshing: asyncio.Task[None] | None = None
        self._probes: dict[BrokerGroup, asyncio.Task[None]] = {}
        self._is_closed = False

    # State.

    @property
    def cluster_id(self) -> str:
        """Id of the cluster that answered."""
        return self._first.router.cluster_id

    @property
    def is_single(self) -> bool:
        """Whether this client knows of no other group."""
        return len(self.all) == 1 and not self._known

    @property
    def home(self) -> BrokerGroup:
        """The first group by name: the default where a call names none.

        Also while it is left out: the meaning of a program does not change because a group is down.
        """
        return self.known()[0]

    def get(self, name: str) -> BrokerGroup:
        """Return the group of that name; empty: the first one. Raises InvalidRequestError."""
        if not name:
            return self.home
        check_text("broker_group", name)
        for group in self.known():
            if group.name == name:
                return group
        names = ", ".join(group.name for group in self.known())
        text = f"no broker group {name!r}; known are {names}"
        raise InvalidRequestError(text, code="client.not_found")

    def of_node(self, node_id: int) -> BrokerGroup:
        """Return the group that a node is of; the first one if no group has it."""
        return next((group for group in self.all if node_id in group.router.nodes), self.home)

    def known(self) -> tuple[BrokerGroup, ...]:
        """Return all groups by name, also those that were left out."""
        groups = {*self.all, *self._known.values()}
        return tuple(sorted(groups, key=lambda group: group.name))

    def view(self, topics: Sequence[str]) -> Route:
        """Return the routes of all groups for these topics, as a value."""
        routes = tuple(group.router.view(topics) for group in self.all)
        return replace(routes[0], cluster_id=self.cluster_id, broker_groups=routes)

    # Life cycle.

    async def connect(self, deadline: Deadline) -> None:
        """Find the cluster: one node that answers, then the other groups.

        Raises UnavailableError when no node can be reached in time, ConnectTimeoutError when none
        answers, other errors if waiting does not help.
        """
        router, backoff = self._first.router, Backoff(deadline)
        while True:
            try:
                await router.refresh(Deadline(min(CONNECT_ATTEMPT_MS, deadline.remaining_ms)))
                break
            except QuorumlogError as error:
                if router.is_final:
                    raise
                if deadline.has_passed:
                    what = (
                        f"none of {', '.join(self.bootstrap)} answered within "
                        f"{deadline.timeout_ms:.0f} ms"
                    )
                    remedy = "check that nodes run there"
                    cause = error.message.removesuffix("; is the node running?")
                    unavailable = UnavailableError(f"{what} ({cause}); {remedy}")
                    if isinstance(error, DeadlineError):
                        unavailable = ConnectTimeoutError(f"{what}; allow more time, or {remedy}")
                    unavailable.cause, unavailable.remedy = error.cause, error.remedy
                    raise unavailable from error
            await backoff.pause()
        await self._survey()
        # One attempt is enough: a group that does not answer now is away until it does.
        if self._probes:
            await asyncio.wait(list(self._probes.values()), timeout=ATTEMPT_MS / 1000)
        self._refreshing = asyncio.create_task(self._keep_fresh())

    async def refresh(self, deadline: Deadline) -> None:
        """Ask all groups for their leaders, once. Raises the first error if none answered."""
        results = await asyncio.gather(
            *(group.router.refresh(deadline) for group in self.all), return_exceptions=True
        )
        failed = [result for result in results if isinstance(result, BaseException)]
        if len(failed) == len(results):
            raise failed[0]

    async def close(self) -> None:
        """Close all connections."""
        self._is_closed = True
        tasks = [task for task in (self._refreshing, *self._probes.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for group in self.known():
            group.calls.is_closed = True
        for group in self.known():
            await group.router.close()

    def suspect(self, group: BrokerGroup) -> None:
        """Mark a group as away; a task probes it until a leader answers."""
        if not group.is_away and not self._is_closed:
            group.is_away = True
            self._probes[group] = asyncio.create_task(self._probe(group))
            self._changed()

    async def _probe(self, group: BrokerGroup) -> None:
        while not await self._has_leader(group):  # noqa: ASYNC110 - it asks again and again.
            await asyncio.sleep(PROBE_MS / 1000)
        del self._probes[group]
        group.is_away = False
        self._changed()

    async def _has_leader(self, group: BrokerGroup) -> bool:
        try:
            await group.router.refresh(Deadline(ATTEMPT_MS))
        except QuorumlogError:
            return False
        except Exception:  # noqa: BLE001 - no caller waits; it would stay away.
            _log.exception("broker group %s: the probe failed, and asks again", group.name)
            return False
        return bool(group.router.leader_address)

    async def _keep_fresh(self) -> None:
        pause_ms = REFRESH_FIRST_MS
        while True:
            await asyncio.sleep(pause_ms / 1000)
            pause_ms = min(2 * pause_ms, REFRESH_MS)
            try:
                await self._survey()
                await asyncio.gather(*map(self._refresh, self.all))
                self._leave_out()
            except Exception:  # noqa: BLE001 - no caller waits for it.
                _log.exception("the refresh of the broker groups failed, and runs again")

    async def _survey(self) -> None:
        """Ask the given addresses whose group is not known yet."""
        nodes = {*self._first.router.nodes.values(), *self._surveyed}
        unknown = [address for address in self.bootstrap if address not in nodes]
        await self._first.router.survey(unknown)

    async def _refresh(self, group: BrokerGroup) -> None:
        router = group.router
        if await router.refresh_topics(router.asked_topics()[-REFRESHED_TOPICS_MAX:]):
            return
        if not await self._has_leader(group) and not self.is_single:
            self.suspect(group)

    # Arrival and departure of groups.

    def _make(
        self,
        name: str,
        addresses: Sequence[str],
        cluster_id: str | None,
        *,
        is_pointed_at: bool = False,
    ) -> BrokerGroup:
        def on_route(answer: log_pb2.RouteResponse, address: str) -> None:
            self._on_route(group, answer, address)

        def on_search(text: str) -> None:
            self.on_search(text)

        channels = Channels(self._credentials, self._transport, self._token)
        router = Router(
            channels,
            self._full_disks,
            addresses,
            cluster_id,
            group=name,
            on_route=on_route,
            on_search=on_search,
        )
        group = BrokerGroup(router, Calls(router), is_pointed_at=is_pointed_at)
        return group

    def _on_route(self, asked: BrokerGroup, answer: log_pb2.RouteResponse, address: str) -> None:
        """Record the groups that a node names in an answer, if its group may vouch for others."""
        if answer.cluster_id != self.cluster_id:
            return  # Nodes refuse other clusters; this is older than the first answer.
        if address:
            if asked is not self._first:
                return  # This address was given for another group.
            self._surveyed.add(address)
            self._named(answer.group, {answer.node_id: address}, is_pointed_at=True)
        elif not asked.is_pointed_at:
            return
        for route in answer.groups:
            self._named(route.group, {n.node_id: n.address for n in route.nodes if n.address})
        named, now_s = {route.group for route in answer.groups}, time.monotonic()
        for group in self.all:
            if group.name in named or group.is_pointed_at:
                group.disowned_s = None
            elif group.disowned_s is None:
                group.disowned_s = now_s

    def _named(self, name: str, nodes: dict[int, str], *, is_pointed_at: bool = False) -> None:
        """Record a group whose nodes are or were at these addresses."""
        nodes = dict(list(nodes.items())[:BOOTSTRAP_MAX])
        addresses = list(nodes.values())
        group = self._known.get(name) or next((g for g in self.all if g.name == name), None)
        if group is None:
            own = self._first.router
            if not name or not addresses or len(self._known) >= GROUPS_MAX:
                return
            group = self._make(name, addresses, own.cluster_id)
            group.router.nodes = nodes  # Until one of the nodes lists them itself.
            self._known[name] = group
        elif group is not self._first and addresses:
            # Used when none of the known nodes is there any more.
            group.router.bootstrap = tuple(addresses)
        group.named_s = time.monotonic()
        group.is_pointed_at = group.is_pointed_at or is_pointed_at
        if group not in self.all:
            self._show((*self.all, group))
            self.suspect(group)  # A group must answer before messages are sent to it.

    def _leave_out(self) -> None:
        """Leave out the groups that were not seen, or not vouched for, during a minute; one group
        always stays."""
        oldest_s = time.monotonic() - GONE_AFTER_S
        there = tuple(
            group
            for group in self.all
            if group.seen_s > oldest_s and (group.disowned_s is None or group.disowned_s > oldest_s)
        )
        if there and len(there) < len(self.all):
            for group in self.all:
                self._known.setdefault(group.name, group)
            self._show(there)

    def _show(self, groups: tuple[BrokerGroup, ...]) -> None:
        self.all = tuple(sorted(groups, key=lambda group: group.name))
        for group in self.all:
            group.router.where = "" if self.is_single else f" of broker group {group.name}"
        self._changed()

    def _changed(self) -> None:
        for changed in list(self.on_change):
            changed()
