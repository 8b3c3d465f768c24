"""What may go wrong with a run itself, as opposed to what a run finds."""


class ChaosError(Exception):
    """A run cannot be made as asked. Says what, why and what to do."""

    code, retryable, outcome = "chaos.cannot", False, "not_applied"

    def __init__(self, what: str, why: str, do: str) -> None:
        super().__init__(what, why, do)
        self.what, self.why, self.do = what, why, do

    def __str__(self) -> str:
        return f"{self.what}: {self.why}; {self.do}"


class NotPossibleHereError(Exception):
    """This machine does not allow the fault: the scenario is skipped, by name, with this reason."""


class NotSoError(Exception):
    """Something that had to become true did not: the scenario fails."""
