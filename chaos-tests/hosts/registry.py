"""Scenarios on hosts: what each needs of the machine, and the list of all.

Owns the registration. A scenario here is one of `chaos` (a coroutine that is given a context), on
another kind of cluster.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from chaos.profile import Profile
from chaos.scenario import RAFT, Body, Scenario, ScenarioContext

from hosts.target import HostTarget

ALWAYS: Final = ("namespaces", "switch")
"""Abilities of the machine without which there are no hosts."""


@dataclass(frozen=True, slots=True)
class HostScenario(Scenario):
    """A named attack on hosts."""

    needs: tuple[str, ...]
    """Abilities of the machine, by name."""
    clock_offsets_s: tuple[int, ...]
    """How far the clock of each host is ahead; those that are missing: 0."""
    has_disks: bool


HOST_SCENARIOS: Final[dict[str, HostScenario]] = {}
"""All scenarios, registered by the modules of hosts.scenarios."""


def host_scenario(
    name: str,
    rows: str,
    *,
    node_count: int = 3,
    needs: tuple[str, ...] = (),
    clock_offsets_s: tuple[int, ...] = (),
    has_disks: bool = False,
    pause_s: float = 0.02,
) -> Callable[[Body], Body]:
    """Register a coroutine as a scenario; the first line of its docstring is the title."""

    def register(body: Body) -> Body:
        assert name not in HOST_SCENARIOS, f"two scenarios are called {name}"
        title = (body.__doc__ or "").strip().splitlines()[0]
        HOST_SCENARIOS[name] = HostScenario(
            name,
            tuple(rows.split()),
            title,
            body,
            Profile(node_count=node_count, is_own=True),
            RAFT,
            False,
            pause_s,
            (*ALWAYS, *needs),
            clock_offsets_s,
            has_disks,
        )
        return body

    return register


def on_hosts(x: ScenarioContext) -> HostTarget:
    """Return the target of a scenario as one on hosts."""
    assert isinstance(x.target, HostTarget), "a scenario of hosts runs on hosts"
    return x.target
