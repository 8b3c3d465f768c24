"""Many trials: one cluster at a time, kept for the scenarios of its profile, then checked.

Owns clusters, places for files, and the treatment of a cluster after a failure: it is kept as it
is, and the next scenario gets a new one. Must not know the content of a scenario. A campaign on
hosts (hosts/campaign.py) prepares other things and makes another kind of cluster.
"""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final, Self

from chaos.calibration import QUIET, MachineSpeed, calibrate
from chaos.cluster import ChaosCluster
from chaos.errors import ChaosError, NotPossibleHereError, NotSoError, unless_demanded
from chaos.profile import ClusterMode, Profile, ScenarioOptions
from chaos.scenario import SCENARIOS, Scenario
from chaos.shim import compile_shim
from chaos.target import Target
from chaos.toxiproxy import Toxiproxy, install
from chaos.trial import Trial, TrialResult
from deploy.local import LocalError

TRIALS_OF_A_CLUSTER: Final = 12
"""Trials after which a cluster is stopped and every byte of it is checked."""
VERIFY_TIMEOUT_S: Final = 120
Show = Callable[[str], None]


@dataclass(slots=True)
class Campaign:
    """A run of trials. In an `async with` the proxy server runs."""

    options: ScenarioOptions
    artifacts: Path
    """Directory of the remains of failures and of the report."""
    show: Show
    results: list[TrialResult] = field(default_factory=list)
    toxiproxy_version: str = "not used"
    machine: MachineSpeed = QUIET
    """Last measurement of the machine, before a cluster was started."""
    began_s: float = field(default_factory=time.monotonic)
    words: str = field(init=False)
    """Options of the command that make it such a campaign again."""
    _root: Path = field(init=False)
    _server: Toxiproxy = field(init=False)
    _stack: AsyncExitStack = field(init=False)
    _shim: Path | None = None
    _why_no_shim: str = ""
    _cluster: Target | None = None
    _trial_count: int = 0
    _cluster_count: int = 0

    def __post_init__(self) -> None:
        self.words = f"--mode {self.options.mode.value}"

    async def __aenter__(self) -> Self:
        self.artifacts.mkdir(parents=True, exist_ok=True)
        async with AsyncExitStack() as stack:
            await asyncio.to_thread(self._prepare, stack)
            stack.push_async_callback(asyncio.to_thread, self.close_cluster, [])
            self._stack = stack.pop_all()
        return self

    def _prepare(self, stack: AsyncExitStack) -> None:
        """Make the place for files, and what clusters need; `stack` removes it."""
        root = tempfile.TemporaryDirectory(prefix="chaos-", dir=memory_directory())
        self._root = Path(stack.enter_context(root))
        self._server = Toxiproxy(install(), self._root / "toxiproxy.log")
        stack.enter_context(self._server)
        self.toxiproxy_version = self._server.version
        try:
            self._shim = compile_shim(self._root)
        except NotPossibleHereError as reason:
            self._why_no_shim = str(reason)

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def run(self, scenario: Scenario, seed: int) -> TrialResult:
        """Run one scenario, on the current cluster if it has the right profile."""
        self._trial_count += 1
        topic = f"chaos-{self._trial_count}"
        result = TrialResult(scenario, seed, self.options.transport_of(seed))
        try:
            cluster = await asyncio.to_thread(self._cluster_for, scenario, seed)
            slowness = self.machine.slowness
            result = await Trial(scenario, cluster, self.options, seed, topic, slowness).run()
        except NotPossibleHereError as reason:
            result.verdict, result.why = unless_demanded(reason)
        except (NotSoError, ChaosError, LocalError) as reason:
            result.verdict, result.why = "failed", str(reason)
        self.results.append(result)
        if result.verdict == "failed":
            await asyncio.to_thread(self._keep, result)
            self.show(self._explained(result))
        elif scenario.profile.is_own or self._cluster_count >= TRIALS_OF_A_CLUSTER:
            await asyncio.to_thread(self.close_cluster, [result])
        return result

    # --- Clusters ---

    def _cluster_for(self, scenario: Scenario, seed: int) -> Target:
        self._demand(scenario)
        if self._cluster is not None and self._cluster.profile != scenario.profile:
            self.close_cluster(self.results[-1:])
        if self._cluster is None:
            self.machine = calibrate(self._root)
            self.show(f"chaos-tests: this machine is {self.machine}")
            directory = self._root / f"cluster-{self._trial_count}"
            # Set first, so that it is closed in any case.
            self._cluster = self._make(directory, scenario.profile, seed)
            self._cluster.start()
            self._cluster.wait_ready()
            self._cluster_count = 0
        self._cluster_count += 1
        return self._cluster

    def _demand(self, scenario: Scenario) -> None:
        """Raise NotPossibleHereError if this machine lacks what a scenario needs."""
        if scenario.needs_shim and self._shim is None:
            raise NotPossibleHereError(self._why_no_shim)

    def _make(self, directory: Path, profile: Profile, seed: int) -> Target:
        """Return a cluster that is not started."""
        return ChaosCluster(directory, profile, self._server, self._shim, self.options.mode)

    def close_cluster(self, blamed: list[TrialResult]) -> None:
        """Stop the cluster gracefully; check every byte, and derived files against the log
        (I18). Findings belong to the last of the `blamed`."""
        cluster, self._cluster = self._cluster, None
        if cluster is None:
            return
        problems = cluster.close()
        if blamed and blamed[-1].verdict == "passed":
            problems += verify({node: cluster.data_directory(node) for node in cluster.node_ids})
            if problems:
                blamed[-1].verdict, blamed[-1].why = "failed", "\n".join(problems)
                self._save(blamed[-1], cluster)
                self.show(self._explained(blamed[-1]))
        cluster.remove()

    def _keep(self, result: TrialResult) -> None:
        """Save all data of a failure, and drop its cluster."""
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            cluster.close()
            self._save(result, cluster)
            cluster.remove()

    def _save(self, result: TrialResult, cluster: Target) -> None:
        """Save the history of a failure, its text and the files of its cluster."""
        place = self._place_of(result)
        place.mkdir(parents=True, exist_ok=True)
        result.recorder.save(place)
        (place / "why.txt").write_text(self._explained(result), "utf-8")
        disks = shutil.ignore_patterns("*.disk")
        shutil.copytree(
            cluster.local.directory, place / "cluster", dirs_exist_ok=True, ignore=disks
        )

    def _explained(self, result: TrialResult) -> str:
        """Return what is known of a failure, and the command that makes it again."""
        again = f"chaos-tests/run {self.words} --transport {result.transport} --seed {result.seed}"
        return (
            f"{result.scenario.name} FAILED: {result.why}\n"
            f"  all there is of it: {self._place_of(result)}\n"
            f"  the same again:     {again} {result.scenario.name}\n"
        )

    def _place_of(self, result: TrialResult) -> Path:
        return self.artifacts / f"{result.scenario.name}-{result.seed}"


def memory_directory() -> Path:
    """Return a directory in memory; without one that can be written, that of temporary files."""
    shared = Path("/dev/shm")
    return shared if os.access(shared, os.W_OK) else Path(tempfile.gettempdir())


def verify(stores: Mapping[int, Path]) -> list[str]:
    """Check every byte of the stores of ended nodes, both ledgers and plain logs.

    A node that died while it made a file leaves that one over, and its next start removes it."""
    problems = []
    for node, directory in stores.items():
        command = [
            str(Path(sys.executable).with_name("qlog")),
            *("store", "verify", str(directory), "-o", "json"),
        ]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=VERIFY_TIMEOUT_S
        )
        report = json.loads(done.stdout) if done.returncode == 1 else {"severities": {}}
        if report["severities"].keys() - {"left_over"} or done.returncode not in (0, 1):
            problems.append(f"I18: the store of node {node}: {done.stdout[-800:]}{done.stderr}")
    return problems


# --- What to run ---

SHORT: Final = (
    "kill-leader", "kill-all", "pause-leader", "rolling-restart", "isolate-leader", "one-way",
    "lossy-links", "broken-links", "sync-error", "bit-flips", "full-disk", "power-loss-all",
)  # fmt: skip
"""The short tier: twelve kinds of fault."""
SLICE: Final = ("kill-leader", "isolate-leader", "lossy-links", "sync-error")
"""Scenarios that every run of all tests contains."""
FEATURES: Final = (
    "transactions", "give-back", "delayed", "delayed-cut", "pop", "pop-fifo", "pop-cut",
)  # fmt: skip
"""Features that the broker builds on the log; each has rules of its own."""


def possible(
    mode: ClusterMode, names: Iterable[str] = (), table: Mapping[str, Scenario] = SCENARIOS
) -> list[Scenario]:
    """Return the scenarios of a mode, all or the named ones, those of one cluster adjacent."""
    chosen = [table[name] for name in names or table]
    first = {scenario.profile: at for at, scenario in reversed(list(enumerate(chosen)))}
    scenarios = [scenario for scenario in chosen if mode in scenario.modes]
    return sorted(scenarios, key=lambda scenario: first[scenario.profile])


def drawn(scenarios: Iterable[Scenario], random: Random) -> Iterator[tuple[Scenario, int]]:
    """Yield scenarios without end, each with a seed, a few of one cluster at a time."""
    by_profile: dict[Profile, list[Scenario]] = {}
    for scenario in scenarios:
        by_profile.setdefault(scenario.profile, []).append(scenario)
    profiles = list(by_profile)
    weights = [len(by_profile[profile]) for profile in profiles]
    while True:
        chosen = by_profile[random.choices(profiles, weights)[0]]
        for scenario in random.sample(chosen, min(len(chosen), TRIALS_OF_A_CLUSTER // 2)):
            yield scenario, random.randrange(1 << 31)
