"""Scenarios, and the context that each of them uses.

Owns waiting with deadlines, the count of faults, and proofs. A scenario without a proof, or
whose load did no work, fails: a fault without effect shows nothing (fault-matrix 12.1).
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from random import Random
from typing import Any, Final, ParamSpec, TypeVar

from chaos.cluster import ChaosCluster
from chaos.errors import NotSoError
from chaos.load import Load
from chaos.profile import ClusterMode, Profile, ScenarioOptions
from chaos.receipts import Moment, strays
from chaos.recorder import Event, Recorder, now_ns
from chaos.target import Target
from checkers.history import FaultNote
from deploy.local import NodeState
from quorumlog.errors import QuorumlogError

_POLL_S: Final = 0.05
DEADLINE_S: Final = 60.0
SHOWN_COUNT: Final = 10
"""Violations that are shown; all are kept."""
ALL_MODES: Final = frozenset(ClusterMode)
RAFT: Final = frozenset({ClusterMode.RAFT})
HA: Final = ALL_MODES - RAFT
_Result = TypeVar("_Result")
_Arguments = ParamSpec("_Arguments")


@dataclass(slots=True)
class Failover:
    """The time from the loss of a leader to the next receipt."""

    term: int
    began_ns: int


@dataclass(slots=True)
class ScenarioContext:
    """The cluster, the load and the reports of one scenario."""

    target: Target
    load: Load
    recorder: Recorder
    random: Random
    options: ScenarioOptions
    fault_counts: dict[str, int] = field(default_factory=dict)
    proofs: list[str] = field(default_factory=list)
    failovers: list[Failover] = field(default_factory=list)
    restarts_ms: list[float] = field(default_factory=list)
    """Times from the start of a killed node until it is ready."""
    notes: list[FaultNote] = field(default_factory=list)
    """Faults that weaken receipts, for the checker."""
    violations: list[str] = field(default_factory=list)
    """Findings of a checker of the scenario itself."""
    factor: float = 1.0
    """Factor by which operations may take longer on this machine, as for the gates."""

    @property
    def cluster(self) -> ChaosCluster:
        """The target as a cluster with proxies and disks."""
        assert isinstance(self.target, ChaosCluster), "a scenario runs on a cluster of its own"
        return self.target

    # --- Waiting ---

    async def do(
        self,
        work: Callable[_Arguments, _Result],
        *given: _Arguments.args,
        **named: _Arguments.kwargs,
    ) -> _Result:
        """Run a blocking function on a thread."""
        return await asyncio.to_thread(work, *given, **named)

    async def until(
        self,
        what: str,
        condition: Callable[_Arguments, object],
        *given: _Arguments.args,
        **named: _Arguments.kwargs,
    ) -> None:
        """Wait until a condition holds; it may block. Raises NotSoError."""
        await self.until_true(what, partial(asyncio.to_thread, condition, *given, **named))

    async def until_true(
        self,
        what: str,
        condition: Callable[_Arguments, Awaitable[object]],
        *given: _Arguments.args,
        **named: _Arguments.kwargs,
    ) -> None:
        """Wait until a condition holds that asks nodes; an error of theirs is no answer. Raises
        NotSoError."""
        deadline, said = time.monotonic() + DEADLINE_S * self.options.time_scale, ""
        while True:
            try:
                if await condition(*given, **named):
                    return
            except QuorumlogError as error:  # As between two leaders.
                said = f", the last error: {error}"
            self.load.check()
            if time.monotonic() >= deadline:
                raise NotSoError(f"waited {DEADLINE_S} s without success: {what}{said}")
            await asyncio.sleep(_POLL_S)

    def says(self, node: int, lo: int, words: str) -> bool:
        """Whether a node's log contains these words from byte `lo` on."""
        return words.encode() in self.cluster.local.log_path(node).read_bytes()[lo:]

    async def acked(self, count: int = 100, timeout_s: float = DEADLINE_S) -> None:
        """Wait until `count` more appends are acked."""
        await self.load.acked(count, timeout_s * self.options.time_scale)

    async def linger(self, low_s: float, high_s: float | None = None) -> None:
        """Let a fault last: the duration is part of the fault, not a wait for a condition."""
        await asyncio.sleep(low_s if high_s is None else self.random.uniform(low_s, high_s))

    # --- Facts ---

    async def leader(self) -> int:
        """Return the node that leads; wait until there is one."""
        leading = 0

        def leads() -> int:
            nonlocal leading
            leading = self.target.leader()
            return leading

        await self.until("a leader", leads)
        return leading

    async def follower(self) -> int:
        """Return a random node that does not lead."""
        leader = await self.leader()
        return self.random.choice([node for node in self.target.node_ids if node != leader])

    async def new_leader(self, old: int) -> int:
        """Wait until another node than `old` leads; return it."""
        leading = 0

        def leads() -> bool:
            nonlocal leading
            states = self.target.status().values()
            leaders = [s for s in states if s.role == "leader" and s.is_ready and s.node_id != old]
            leading = max(leaders, key=_term).node_id if leaders else 0
            return bool(leading)

        await self.until(f"a leader other than node {old}", leads)
        return leading

    async def term(self) -> int:
        """Return the highest term that any node knows."""
        states = (await self.do(self.target.status)).values()
        return max(map(_term, states))

    # --- Reports ---

    @asynccontextmanager
    async def fault(self, kind: str, text: str, *, count: int = 1) -> AsyncIterator[None]:
        """Record a fault that lasts as long as the block."""
        event = self.inject(kind, text, count=count)
        try:
            yield
        finally:
            event.until_ns = now_ns()

    def inject(self, kind: str, text: str, *, count: int = 1) -> Event:
        """Record a momentary fault."""
        self.fault_counts[kind] = self.fault_counts.get(kind, 0) + count
        return self.recorder.note("fault", f"{kind}: {text}")

    async def kill(self, node: int, text: str = "") -> None:
        """Kill a node by SIGKILL."""
        self.inject("kill", text or f"node {node}")
        await self.do(self.target.kill, node)

    async def ended(self, node: int, code: int, text: str) -> None:
        """Wait until a node has ended with a status, which proves what `text` says."""
        await self.do(self.target.wait_ended, node, code)
        self.prove(f"{text}: {code}", True)

    async def kill_leader(self, what: str = "the leader") -> int:
        """Kill the leader by SIGKILL; return its number."""
        old = await self.leader()
        self.leader_lost()
        await self.kill(old, f"{what}, node {old}")
        return old

    async def restart(self, *nodes: int) -> None:
        """Start nodes, and wait until all are ready."""
        await self.do(self.target.start, *nodes)
        await self.do(self.target.wait_ready)

    def leader_lost(self) -> None:
        """Note that no leader serves from now on, until the first receipt of a later term."""
        self.failovers.append(Failover(self.load.clients.highest_term, now_ns()))

    def none_acked(self, what: str, moment: Moment, *, only_term: bool = False) -> None:
        """Demand that no impossible receipt was given. Raises NotSoError."""
        clients = self.load.clients
        problems = strays(self.recorder.operations, clients.places, moment, only_term=only_term)
        self.demand_none([f"{what}: {one}" for one in problems])
        self.proofs.append(f"{what}: no receipt of a call that began then")

    def prove(self, what: str, is_so: object) -> None:
        """Demand and record a proof that the fault took effect. Raises NotSoError without it."""
        if not is_so:
            raise NotSoError(f"the fault did not bite: not so: {what}")
        self.proofs.append(what)
        self.recorder.note("proof", what)

    def keep(self, name: str, lines: Iterable[Any]) -> None:
        """Keep part of a history of the scenario itself, in case it fails."""
        self.recorder.kept[name] = list(lines)

    def keep_history(self, history: Any) -> None:
        """Keep each collection of a history, which is a dataclass; of a dict its items."""
        for name, rows in asdict(history).items():
            if isinstance(rows, dict | list):
                self.keep(name, rows.items() if isinstance(rows, dict) else rows)

    def demand_none(self, violations: list[str]) -> None:
        """Take the findings of a scenario's own checker. Raises NotSoError if there are any."""
        self.violations += violations
        if violations:
            shown = "\n".join(violations[:SHOWN_COUNT])
            raise NotSoError(f"{len(violations)} violations:\n{shown}")


Body = Callable[[ScenarioContext], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Scenario:
    """A named attack, and the rows of the fault matrix that it stands for."""

    name: str
    rows: tuple[str, ...]
    title: str
    body: Body
    profile: Profile
    modes: frozenset[ClusterMode]
    needs_shim: bool
    pause_s: float
    """Pause between calls of one client."""


SCENARIOS: Final[dict[str, Scenario]] = {}
"""All scenarios, registered by the modules of chaos.scenarios."""


def scenario(
    name: str,
    rows: str,
    *,
    profile: Profile | None = None,
    modes: frozenset[ClusterMode] = ALL_MODES,
    needs_shim: bool = False,
    pause_s: float = 0.02,
    table: dict[str, Scenario] = SCENARIOS,
) -> Callable[[Body], Body]:
    """Register a coroutine as a scenario; the first line of its docstring is the title."""

    def register(body: Body) -> Body:
        assert name not in table, f"two scenarios are called {name}"
        title = (body.__doc__ or "").strip().splitlines()[0]
        assert title, f"{name} does not say what it is"
        table[name] = Scenario(
            name,
            tuple(rows.split()),
            title,
            body,
            profile or Profile(),
            modes,
            needs_shim or bool(profile and profile.is_shadowed),
            pause_s,
        )
        return body

    return register


def _term(state: NodeState) -> int:
    return state.term or 0
