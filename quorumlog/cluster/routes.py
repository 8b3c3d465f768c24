"""The routes of one broker group: its nodes, its leader, its queues of topics.

Owns this client's view of the group and the search for the leader; must not know what is sent
there, nor how several groups make one cluster: the part of an answer about others is passed on. One
search runs at a time and all callers wait for it. The search asks all known nodes at once, every 25
to 50 ms until one of them answers that it leads itself: after the death of a leader the next append
is then late by the election and little else. A suspected leader is believed again only when it
answers itself, or under a higher term.
"""

import asyncio
import random
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from quorumlog.cluster.channels import CHANNELS_MAX, Channels, NodeChannel, answer_of
from quorumlog.cluster.full_disks import FullDisks
from quorumlog.cluster.retry import Deadline
from quorumlog.errors import (
    DeadlineError,
    InvalidRequestError,
    NoTlsError,
    QuorumlogError,
    StoreFullError,
    UnavailableError,
    UnimplementedError,
    WrongClusterError,
)
from quorumlog.pb import log_pb2

BOOTSTRAP_MAX: Final = 16
NODES_MAX: Final = (CHANNELS_MAX - BOOTSTRAP_MAX) // 2  # Old and new ones have room together.
TOPICS_MAX: Final = 16_384  # Routes that are kept; the oldest goes first.
POLL_MIN_MS: Final = 25
POLL_MAX_MS: Final = 50
ANSWER_TIMEOUT_MS: Final = 1_000  # For one question; a paused node must not delay the search.


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """A topic's queues in one group. `permission`: 4 read, 2 write, 6 both, as in RocketMQ."""

    topic: str
    queue_count: int
    permission: int


@dataclass(frozen=True, slots=True)
class Route:
    """The route of a broker group. `leader_id` is 0 while it has no leader.

    `broker_groups` has this group and all others of the cluster, by name.
    """

    cluster_id: str
    term: int
    leader_id: int
    leader_address: str
    nodes: dict[int, str]
    topics: dict[str, TopicRoute]
    broker_group: str = ""
    broker_groups: "tuple[Route, ...]" = ()


@dataclass(slots=True)
class _Round:
    """Result of one round of questions. The best leader has the highest term, then confirmation."""

    term: int = -1
    is_confirmed: bool = False  # The leader itself has answered so.
    leader_id: int = 0
    leader_address: str = ""
    answered: set[int] = field(default_factory=set)  # Node ids.
    silent: set[str] = field(default_factory=set)  # Addresses.
    last_error: QuorumlogError | None = None
    is_final: bool = False  # The error is final: asking again does not help.

    def offer(self, term: int, leader_id: int, address: str, *, is_confirmed: bool) -> None:
        """Replace the leader so far if this one is better."""
        if (term, is_confirmed) > (self.term, self.is_confirmed):
            self.term, self.is_confirmed = term, is_confirmed
            self.leader_id, self.leader_address = leader_id, address


OnSearch = Callable[[str], None]
"""Called with what a search for a leader waits for, and with an empty text at its end."""
OnRoute = Callable[[log_pb2.RouteResponse, str], None]
"""Called with each answer, and its address; an empty address means a node of this group."""


class Router:
    """The client's view of one group. All of it belongs to one event loop."""

    def __init__(
        self,
        channels: Channels,
        full_disks: FullDisks,
        bootstrap: Sequence[str],
        cluster_id: str | None = None,
        *,
        group: str = "",
        on_route: OnRoute | None = None,
        on_search: OnSearch = lambda _: None,
    ) -> None:
        """`group` empty: the group of the first node that answers."""
        if not 0 < len(bootstrap) <= BOOTSTRAP_MAX:
            raise InvalidRequestError(f"{len(bootstrap)} addresses; give 1 to {BOOTSTRAP_MAX}")
        self.channels, self.full_disks = channels, full_disks
        self.bootstrap = tuple(bootstrap)
        self.cluster_id = cluster_id or ""
        self.group = group
        self._is_told = bool(group)  # The group was given: its nodes must name the same.
        self.where = ""  # For errors: " of broker group g1" when there are others.
        self.answered_s = 0.0  # Time of the group's last answer, on the monotonic clock.
        self.searches = self.questions = self.leader_changes = 0
        """Counts since the start of the client."""
        self._on_route, self._on_search = on_route, on_search
        self._strangers: set[str] = set()  # Addresses in `bootstrap` of nodes of other groups.
        self.nodes: dict[int, str] = {}
        self.term = 0
        self.leader_id = 0
        self.batch_size_bytes_max = 0  # 0: not known yet.
        self.body_size_bytes_max = 0
        self.leader_address = ""
        """Address of the known leader; empty while it is searched for."""
        self._suspected = ""  # Address and term of a leader that failed a call.
        self._suspected_term = -1
        self._topics: dict[str, TopicRoute] = {}
        self._lacked: dict[str, None] = {}  # Topics that the leader does not have.
        self._search_task: asyncio.Task[None] | None = None
        self._random = random.Random()
        self._last_error: QuorumlogError | None = None
        self.is_final = False
        """Whether the last search failed for a reason that waiting does not remove. See _Round."""
        self._is_answered = False  # A node answered in the last round.
        self._silent: list[str] = []  # Nodes that did not, a half of all or more.

    # State.

    def topic(self, name: str) -> TopicRoute | None:
        """Return the known route of a topic, without asking; None without one."""
        return self._topics.get(name)

    def addresses(self) -> list[str]:
        """Return all addresses at which a node may be, those of known nodes first."""
        others = (address for address in self.bootstrap if address not in self._strangers)
        return list(dict.fromkeys([*self.nodes.values(), *others]))

    def node(self, node_id: int) -> NodeChannel:
        """Return the node of that id. Raises InvalidRequestError if the cluster has none."""
        address = self.nodes.get(node_id)
        if address is None:
            node_ids = ", ".join(map(str, sorted(self.nodes))) or "none"
            text = f"no node {node_id}; known are {node_ids}"
            raise InvalidRequestError(text, code="client.not_found")
        return self.channels.get(address)

    def lacks(self, topic: str) -> bool:
        """Whether the leader was asked for a topic and does not have it."""
        return topic in self._lacked

    def asked_topics(self) -> list[str]:
        """Return the topics that were asked for, the latest last."""
        return [*self._lacked, *self._topics]

    def forget_topic(self, topic: str) -> None:
        """Forget the route of a topic, so that its next use asks for it."""
        self._topics.pop(topic, None)
        self._lacked.pop(topic, None)

    def view(self, topics: Sequence[str] = ()) -> Route:
        """Return the known routes as a value."""
        routes = {name: self._topics[name] for name in topics if name in self._topics}
        return Route(
            self.cluster_id,
            self.term,
            self.leader_id if self.leader_address else 0,
            self.leader_address,
            dict(self.nodes),
            routes,
            self.group,
        )

    # The leader.

    async def leader(self, deadline: Deadline) -> NodeChannel:
        """Return the leader, searched for if it is not known.

        Raises the error of the search if it found none before the deadline; nothing was sent then.
        """
        while True:
            address = self.leader_address
            if address:
                return self.channels.get(address)
            if deadline.has_passed:
                if self._silent:
                    raise self._no_leader(deadline)
                what = f"finding the leader{self.where}"
                raise deadline.error(what, self._last_error, attempts=0)
            await self._wait_for_search(deadline, until_found=True)
            if self.is_final and self._last_error is not None:
                raise self._last_error

    def _no_leader(self, deadline: Deadline) -> DeadlineError:
        """Return the error of a search that a half of the nodes or more did not answer."""
        verb = "does" if len(self._silent) == 1 else "do"
        cause = f"{' and '.join(self._silent)} {verb} not answer"
        what = f"no node led{self.where} within {deadline.timeout_ms:.0f} ms: {cause}"
        do = "start one of them, or look at the cluster (qlog cluster status)"
        error = DeadlineError(f"{what}; {do}")
        error.cause = cause
        return error

    def leader_failed(self, address: str) -> None:
        """Suspect the leader at `address`, which broke its connection or denied to lead; search."""
        if address == self.leader_address:
            self._suspected, self._suspected_term = address, self.term
            self.leader_address = ""

    def on_term(self, term: int) -> None:
        """Learn the term of an answer, so that leaders of earlier terms are not believed."""
        self.term = max(self.term, term)

    def on_hint(self, leader_id: int, leader_address: str, asked: str) -> None:
        """Believe a node that names another one as leader, unless that one is suspected."""
        self.leader_failed(asked)
        hinted = leader_address or self.nodes.get(leader_id, "")
        if hinted and hinted not in (asked, self._suspected) and not self.leader_address:
            if leader_id:
                self.nodes.setdefault(leader_id, hinted)
            self._lead(leader_id, hinted)

    async def refresh(self, deadline: Deadline) -> None:
        """Ask all nodes for the leader, once, while the present leader stays in use.

        Raises the error if no node answered.
        """
        await self._wait_for_search(deadline, until_found=False)
        if not self._is_answered:
            raise self._last_error or DeadlineError("no node answered in time; ask again")

    async def _wait_for_search(self, deadline: Deadline, *, until_found: bool) -> None:
        """Wait for the running search, or start one, which outlives its starter."""
        self.channels.check_open()
        task = self._search_task
        if task is None or task.done():
            self.searches += 1
            task = asyncio.create_task(self._search(deadline, until_found))
            self._search_task = task
        done, _ = await asyncio.wait({task}, timeout=max(0.0, deadline.remaining_s))
        self.channels.check_open()  # Otherwise its waiters would be cancelled with it.
        if done:
            task.result()

    async def _search(self, deadline: Deadline, until_found: bool) -> None:
        try:
            await self._find(deadline, until_found)
        finally:
            self._on_search("")

    async def _find(self, deadline: Deadline, until_found: bool) -> None:
        while True:
            present = self.leader_address
            poll = await self._ask_all("" if until_found else present)
            self._last_error, self.is_final = poll.last_error, poll.is_final
            self._is_answered = bool(poll.answered)
            silent = [one for one in self.nodes.values() if one in poll.silent]
            self._silent = silent if 2 * len(silent) >= len(self.nodes) else []
            if self.leader_address != present:
                return  # A hint was faster.
            if poll.leader_address:
                self._last_error = None
                self._lead(poll.leader_id, poll.leader_address)
                await self.channels.keep_only({*self.addresses(), poll.leader_address})
                return
            if not until_found or poll.is_final or deadline.has_passed:
                return
            count = f": {len(self._silent)} of {len(self.nodes)} do not answer"
            self._on_search(
                f"no node leads{self.where}{count if self._silent else ''}; "
                f"{deadline.timeout_ms / 1000:g} s at most"
            )
            pause_ms = self._random.uniform(POLL_MIN_MS, POLL_MAX_MS)
            await asyncio.sleep(min(pause_ms / 1000, max(0.0, deadline.remaining_s)))

    async def _ask_all(self, doubted: str) -> _Round:
        """Ask all nodes at once; return as soon as the answers suffice to name the leader."""
        poll = _Round()
        questions = [asyncio.create_task(self._ask(address)) for address in self.addresses()]
        try:
            for answer in asyncio.as_completed(questions):
                self._weigh(poll, *await answer)
                if self._suffices(poll, doubted):
                    break
        finally:
            for task in questions:
                task.cancel()
            await asyncio.gather(*questions, return_exceptions=True)
        return poll

    def _suffices(self, poll: _Round, doubted: str) -> bool:
        """Whether an undoubted leader has confirmed itself, or a majority has answered and a leader
        is named: one node of a majority knows the newest term."""
        is_doubted = poll.leader_address in (doubted, self._suspected)
        if poll.is_confirmed and poll.term >= self.term and not is_doubted:
            return True
        return bool(poll.leader_address) and len(poll.answered) > len(self.nodes) // 2

    def _weigh(
        self, poll: _Round, address: str, answer: "log_pb2.RouteResponse | QuorumlogError"
    ) -> None:
        if isinstance(answer, QuorumlogError):
            poll.last_error = answer
            if isinstance(answer, UnavailableError | DeadlineError):
                poll.silent.add(address)
            # A node of another cluster fails the search only if no other node answers.
            is_final = isinstance(answer, WrongClusterError | UnimplementedError | NoTlsError)
            poll.is_final = is_final and not poll.answered
            return
        poll.is_final = False
        if self._is_stranger(answer):
            self._strangers.add(address)
            text = (
                f"{address} is of broker group {answer.group} of cluster {answer.cluster_id}, not "
                f"of {self.group} of {self.cluster_id}; use its own"
            )
            poll.last_error = UnavailableError(text)
            if self._on_route is not None:
                self._on_route(answer, address)
            return
        poll.answered.add(answer.node_id)
        self._learn(answer)
        if answer.leader_id and answer.leader_id == answer.node_id:
            poll.offer(answer.term, answer.leader_id, address, is_confirmed=True)
            return
        named = self.nodes.get(answer.leader_id, "")
        is_dead = named == self._suspected and answer.term <= self._suspected_term
        if named and not is_dead:
            poll.offer(answer.term, answer.leader_id, named, is_confirmed=False)
        elif answer.no_room:
            poll.last_error = StoreFullError(f"{address} cannot lead: {answer.no_room}")
            self.full_disks.note(poll.last_error)
        else:
            poll.last_error = UnavailableError(f"{address} knows no leader; wait a moment")

    async def survey(self, addresses: Sequence[str]) -> None:
        """Ask the nodes at these addresses once, of any group."""
        answers = await asyncio.gather(*(self._ask(address) for address in addresses))
        for address, answer in answers:
            self._weigh(_Round(), address, answer)

    async def refresh_topics(self, topics: Sequence[str]) -> bool:
        """Ask the leader for these topics again; return whether there is a leader that answers."""
        address = self.leader_address
        if not address:
            return False
        _, answer = await self._ask(address, topics)
        if isinstance(answer, QuorumlogError) or answer.leader_id != answer.node_id:
            return False
        self.learn_topics(answer, topics)
        return True

    async def _ask(
        self, address: str, topics: Sequence[str] = ()
    ) -> "tuple[str, log_pb2.RouteResponse | QuorumlogError]":
        self.questions += 1
        request = log_pb2.RouteRequest(cluster_id=self.cluster_id, topics=topics)
        try:
            node = self.channels.get(address)
        except QuorumlogError as error:
            return address, error
        try:
            answer = await answer_of(address, node.rpc.Route, request, ANSWER_TIMEOUT_MS / 1000)
        except QuorumlogError as error:
            if node.framed is not None:
                node.framed.node_failed()
            return address, await node.explained(error)
        if node.framed is not None:
            node.framed.learn(answer)
        return address, answer

    # Answers.

    def _lead(self, leader_id: int, address: str) -> None:
        if (leader_id, address) != (self.leader_id, self.leader_address):
            self.leader_changes += bool(self.leader_id) and leader_id != self.leader_id
            self.leader_id, self.leader_address = leader_id, address
        if address == self._suspected:
            self._suspected, self._suspected_term = "", -1

    def _is_stranger(self, response: log_pb2.RouteResponse) -> bool:
        """Whether a node is of another group or cluster."""
        if self.cluster_id and response.cluster_id != self.cluster_id:
            return True
        return (self._is_told or bool(self.group)) and response.group != self.group

    def _learn(self, response: log_pb2.RouteResponse) -> None:
        self.cluster_id = self.cluster_id or response.cluster_id
        self.group = self.group or response.group
        self.answered_s = time.monotonic()
        if self._on_route is not None:
            self._on_route(response, "")
        if response.term >= self.term and response.nodes:
            self.term = response.term
            nodes = {node.node_id: node.address for node in response.nodes if node.address}
            self.nodes = dict(list(nodes.items())[:NODES_MAX])
        self.batch_size_bytes_max = response.batch_size_bytes_max or self.batch_size_bytes_max
        self.body_size_bytes_max = response.body_size_bytes_max or self.body_size_bytes_max
        for topic in response.topics:
            self.forget_topic(topic.topic)
            if len(self._topics) >= TOPICS_MAX:
                del self._topics[next(iter(self._topics))]
            self._topics[topic.topic] = TopicRoute(topic.topic, topic.queue_count, topic.permission)

    def learn_topics(self, response: log_pb2.RouteResponse, asked: Sequence[str]) -> None:
        """Record the leader's answer about topics; it does not have the ones that are left out."""
        if self._is_stranger(response):
            return
        for topic in asked:
            self.forget_topic(topic)
        self._learn(response)
        if response.leader_id == response.node_id:
            self._lacked.update(dict.fromkeys(name for name in asked if name not in self._topics))
            while len(self._lacked) > TOPICS_MAX:
                del self._lacked[next(iter(self._lacked))]

    async def close(self) -> None:
        """Close all connections and end the search; callers that wait get a ClosedError."""
        await self.channels.close()
        task, self._search_task = self._search_task, None
        if task is not None and not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def is_address(text: str) -> bool:
    """Whether a text is HOST:PORT with a port that exists."""
    host, _, port = text.rpartition(":")
    is_host = re.fullmatch(r"[^\s/;,@?#\\\"']+", host) is not None
    return is_host and re.fullmatch("[0-9]{1,5}", port) is not None and 0 < int(port) < 65_536


def parse_bootstrap(bootstrap: str | Sequence[str]) -> tuple[str, ...]:
    """Split and check "host:port,host:port". Raises InvalidRequestError."""
    parts = bootstrap.split(",") if isinstance(bootstrap, str) else list(bootstrap)
    addresses = tuple(dict.fromkeys(part.strip() for part in parts if part.strip()))
    for address in addresses:
        if not is_address(address):
            raise InvalidRequestError(f"address {address!r} makes no sense; use host:port")
    if not addresses:
        raise InvalidRequestError("no address is given; use host:port,host:port")
    return addresses
