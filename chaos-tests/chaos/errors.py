"""Errors of a run itself, as opposed to the findings of a run.

A fault that cannot be made here was not tried. A person may go on without it; where a machine
decides (`CI` is set) it is a failure.
"""

import os
from typing import Final

CI_VARIABLE: Final = "CI"
_NO: Final = ("", "0", "false", "no")


class ChaosError(Exception):
    """A run cannot be made as asked. Says what, why and what to do."""

    code, retryable, outcome = "chaos.cannot", False, "not_applied"

    def __init__(self, what: str, why: str, do: str) -> None:
        super().__init__(what, why, do)
        self.what, self.why, self.do = what, why, do

    def __str__(self) -> str:
        return f"{self.what}: {self.why}; {self.do}"


class NotPossibleHereError(Exception):
    """This machine does not allow the fault: the scenario is skipped, by name, with this reason,
    or fails where all faults are demanded."""


class NotSoError(Exception):
    """A condition that had to become true did not: the scenario fails."""


def is_all_demanded() -> bool:
    """Whether a fault that cannot be made here is a failure."""
    return os.environ.get(CI_VARIABLE, "").lower() not in _NO


def unless_demanded(reason: NotPossibleHereError) -> tuple[str, str]:
    """Return verdict and reason for a scenario that cannot be run here."""
    if is_all_demanded():
        return "failed", f"{CI_VARIABLE} is set, and a fault cannot be injected here: {reason}"
    return "skipped", str(reason)
