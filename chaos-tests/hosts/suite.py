"""A run of scenarios on hosts: for each a network and a cluster of its own, and the verdict.

Owns the order (network, disks, nodes, trial, end, check of the stores) and what is kept of a
failure. Must not know the content of a scenario.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from chaos.calibration import QUIET, MachineSpeed, calibrate
from chaos.campaign import failure_text, save_failure, verify
from chaos.errors import ChaosError, NotPossibleHereError, NotSoError, unless_demanded
from chaos.profile import ScenarioOptions
from chaos.trial import Trial, TrialResult

from deploy.local import LocalError
from hosts.abilities import Ability
from hosts.fabric.network import HostNetwork
from hosts.namespaces import RunPlace
from hosts.registry import HostScenario
from hosts.target import HostTarget

Show = Callable[[str], None]


@dataclass(slots=True)
class HostRun:
    """One scenario that was run, or could not be."""

    scenario: HostScenario
    result: TrialResult
    figures: Mapping[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class HostSuite:
    """A run of scenarios."""

    place: RunPlace
    options: ScenarioOptions
    artifacts: Path
    abilities: Mapping[str, Ability]
    show: Show
    runs: list[HostRun] = field(default_factory=list)
    machine: MachineSpeed = QUIET

    async def run(self, scenario: HostScenario, seed: int) -> HostRun:
        """Run one scenario."""
        run = HostRun(scenario, TrialResult(scenario, seed, self.options.transport_of(seed)))
        self.runs.append(run)
        try:
            self._demand(scenario)
            self.machine = await asyncio.to_thread(calibrate, self.place.directory)
            offsets = scenario.clock_offsets_s
            network = HostNetwork(self.place, scenario.profile.node_count, seed, offsets)
            with network:
                await self._run_on(network, run, seed)
        except NotPossibleHereError as reason:
            run.result.verdict, run.result.why = unless_demanded(reason)
        except (NotSoError, ChaosError, LocalError) as reason:
            run.result.verdict, run.result.why = "failed", str(reason)
        if run.result.verdict == "failed":
            self.show(self.explained(run.result))
        return run

    def _demand(self, scenario: HostScenario) -> None:
        for name in scenario.needs:
            if not self.abilities[name].is_there:
                raise NotPossibleHereError(f"no {name}: {self.abilities[name].detail}")

    async def _run_on(self, network: HostNetwork, run: HostRun, seed: int) -> None:
        scenario = run.scenario
        directory = self.place.directory / f"cluster-{len(self.runs)}"
        target = HostTarget(
            directory,
            scenario.profile,
            network,
            run=self.place.name,
            has_disks=scenario.has_disks,
        )
        try:
            await asyncio.to_thread(target.start)
            await asyncio.to_thread(target.wait_ready)
            topic = f"hosts-{len(self.runs)}"
            slowness = self.machine.slowness
            trial = Trial(scenario, target, self.options, seed, topic, slowness)
            run.result = await trial.run()
            run.figures = target.figures
        finally:
            problems = await asyncio.to_thread(target.close)
            if run.result.verdict == "passed":
                stores = {node: target.data_directory(node) for node in target.node_ids}
                problems += await asyncio.to_thread(verify, stores)
            if problems:
                run.result.verdict, run.result.why = "failed", "\n".join(problems)
            if run.result.verdict == "failed":
                text = self.explained(run.result)
                await asyncio.to_thread(
                    save_failure, run.result, self.artifacts, text, target.directory
                )
            await asyncio.to_thread(target.remove)

    def explained(self, result: TrialResult) -> str:
        """Return what is known of a failure, and the command that makes it again."""
        scenario = f"--scenario {result.scenario.name}"
        return failure_text(result, self.artifacts, "--hosts", scenario)
