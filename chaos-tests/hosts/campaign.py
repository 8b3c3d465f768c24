"""A campaign on hosts: each scenario has a network and a cluster of its own.

Owns the place of the run and the choice of the cluster; the rest is that of every campaign. Works
inside of `namespaces.enter` only.
"""

from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from chaos.campaign import Campaign, memory_directory
from chaos.profile import Profile
from chaos.scenario import Scenario

from hosts.abilities import demand_abilities
from hosts.fabric.network import HostNetwork
from hosts.limits import remove_stale
from hosts.namespaces import RunPlace
from hosts.registry import host_profile
from hosts.target import HostTarget


@dataclass(slots=True)
class HostCampaign(Campaign):
    """A run of scenarios on hosts."""

    _place: RunPlace = field(init=False)

    def __post_init__(self) -> None:
        self.words = "--hosts"

    def _prepare(self, stack: AsyncExitStack) -> None:
        for left in remove_stale():
            self.show(f"chaos-tests: of an ended run: {left}")
        self._place = stack.enter_context(RunPlace(memory_directory()))
        self._root = self._place.directory

    def _demand(self, scenario: Scenario) -> None:
        demand_abilities(host_profile(scenario.profile).needs)

    def _make(self, directory: Path, profile: Profile, seed: int) -> HostTarget:
        on_hosts = host_profile(profile)
        network = HostNetwork(self._place, profile.node_count, seed, on_hosts.clock_offsets_s)
        return HostTarget(directory, on_hosts, network, self._place.name)
