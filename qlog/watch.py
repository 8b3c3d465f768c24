"""Commands that show a state and may look again: `--watch`, `--until CONDITION`, `--timeout`.

Owns the looks, one a second, each with a connection of its own: a cluster that is down at one of
them is only not as wished. Must not know what the state is.
"""

import functools
import math
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import click

from qlog.command_decorators import Printout, command_with, keys_of, print_printout
from qlog.connection import ask, call_timeout_ms, limit_calls
from qlog.message_rows import time_text
from qlog.output import Format, output_option
from qlog.parsed import duration_text
from quorumlog.command_errors import CliError, ExitCode, explain
from quorumlog.standard_output import styled, wait_for_hang_up

_INTERVAL_S: Final = 1.0
_UNTIL_TIMEOUT_MS: Final = 60_000
_CLEAR: Final = "\033[H\033[2J"


class Condition(NamedTuple):
    """What `--until` waits for."""

    meaning: str
    holds: Callable[[Any], bool]
    """Of the value of the command's Printout."""


EXISTS: Final = {"exists": Condition("there is one", lambda _value: True)}
"""The condition of a command that fails with NOT_FOUND without what it shows."""


def watched(
    conditions: Mapping[str, Condition],
) -> Callable[[Callable[..., object]], Callable[..., int]]:
    """Return a decorator that does what `printed` does, once or with each look."""

    def decorate(function: Callable[..., object]) -> Callable[..., int]:
        @click.option("--watch", is_flag=True, help="Look again each second, until Ctrl-C.")
        @output_option
        @functools.wraps(function)
        def command(output: Format, watch: bool, until: str | None = None, **options: Any) -> int:
            def look() -> Printout:
                result = function(**options)
                return result if isinstance(result, Printout) else Printout(result)

            def show(printout: Printout) -> None:
                if watch and output is Format.TABLE:
                    if sys.stdout.isatty():
                        print(_CLEAR, end="", file=styled(sys.stdout))
                    click.echo(time_text(int(time.time() * 1000)))
                print_printout(printout, keys, output)
                if watch and output is Format.TABLE:
                    click.echo()
                sys.stdout.flush()

            keys = keys_of(function.__doc__ or "")
            if not watch and until is None:
                printout = look()
                show(printout)
                return printout.exit_code
            wait = _Wait(until, conditions, is_watching=watch)
            try:
                return wait.end(look, show)
            except KeyboardInterrupt:
                if until is not None:
                    raise
                return ExitCode.OK

        if not conditions:
            return command
        meanings = "; ".join(f"{name}: {one.meaning}" for name, one in conditions.items())
        text = f"Wait until this holds, and end with 0, or with 6 at --timeout. {meanings}."
        return click.option("--until", type=click.Choice([*conditions]), help=text)(command)

    return decorate


def watched_command(
    conditions: Mapping[str, Condition],
) -> Callable[[Callable[..., object]], Callable[..., int]]:
    """Return a decorator that does what `cluster_command` does, once or with each look."""
    return command_with(ask, watched(conditions))


class _Wait:
    """Looks until a condition holds; without one, until the caller is interrupted."""

    def __init__(
        self, until: str | None, conditions: Mapping[str, Condition], *, is_watching: bool
    ) -> None:
        self._until, self._is_watching = until, is_watching
        self._holds = conditions[until].holds if until else lambda _value: False
        self._tolerated = {ExitCode.NOT_FOUND} if until in EXISTS else set()

    def end(self, look: Callable[[], Printout], show: Callable[[Printout], None]) -> ExitCode:
        """Return OK when the condition holds. Raises CliError at the time-out, and errors that
        another look does not mend."""
        timeout_ms = call_timeout_ms(_UNTIL_TIMEOUT_MS)
        ends = time.monotonic() + timeout_ms / 1000 if self._until else math.inf
        while True:
            if self._until:
                limit_calls(ends)
            printout, failure = None, None
            try:
                printout = look()
            except Exception as error:
                failure = explain(error)
                is_passing = getattr(error, "retryable", False)
                if not is_passing and failure.exit_code not in self._tolerated:
                    raise
            is_met = printout is not None and self._holds(printout.value)
            left_s = ends - time.monotonic()
            if printout is not None and (self._is_watching or is_met or left_s <= 0):
                show(printout)
            elif failure is not None and self._is_watching:
                click.echo(failure, err=True)
            if is_met:
                return ExitCode.OK
            if left_s <= 0:
                why = failure.what if failure else "; ".join(printout.lines if printout else ())
                raise CliError(
                    f"{self._until!r} does not hold after {duration_text(timeout_ms)}",
                    why or "the last look is above",
                    "wait longer, with --timeout 10m",
                    ExitCode.TIMEOUT,
                )
            if wait_for_hang_up(min(_INTERVAL_S, left_s)):
                raise BrokenPipeError
