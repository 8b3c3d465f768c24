"""Scenarios on hosts: the list of all, and their registration.

A scenario here is one of `chaos` (a coroutine that is given a context), on another kind of cluster.
"""

from collections.abc import Callable
from typing import Final

from chaos.profile import Profile
from chaos.scenario import RAFT, Body, Scenario, ScenarioContext, scenario

from hosts.target import HostProfile, HostTarget

ALWAYS: Final = ("namespaces", "switch")
"""Abilities of the machine without which there are no hosts."""
HOST_SCENARIOS: Final[dict[str, Scenario]] = {}
"""All scenarios, registered by the modules of hosts.scenarios."""
_THREE_HOSTS: Final = HostProfile()


def host_scenario(
    name: str, rows: str, profile: HostProfile = _THREE_HOSTS
) -> Callable[[Body], Body]:
    """Register a coroutine as a scenario; the first line of its docstring is the title."""
    return scenario(name, rows, profile=profile, modes=RAFT, table=HOST_SCENARIOS)


def host_profile(profile: Profile) -> HostProfile:
    """Return the profile of a scenario as one of hosts."""
    assert isinstance(profile, HostProfile), "a scenario of hosts has a profile of hosts"
    return profile


def on_hosts(x: ScenarioContext) -> HostTarget:
    """Return the target of a scenario as one on hosts."""
    assert isinstance(x.target, HostTarget), "a scenario of hosts runs on hosts"
    return x.target
