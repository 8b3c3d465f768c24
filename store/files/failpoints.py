"""Named places where a test, or a person, makes the store fail on purpose.

Owns the registry and the actions; must not know what the places mean. Every file-system call of
`store.files.file_system` passes one, so does each step of an append, a roll and a recovery. Off by
default: an unarmed point costs one truth test, and on the way of an append not even a call: there
the caller asks `is_on` first.

A specification is `name=action[@n]`: act at the n-th pass (default 1) and at that one only;
`name=action@n+` acts from the n-th on. Actions: `EIO`, `ENOSPC` or any other errno name raises that
OSError; `kill` ends the process by SIGKILL; `short` makes a write or allocation stop half-way.
Several are joined by `;` in the environment variable QUORUMLOG_FAILPOINTS.
"""

import errno
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

ENVIRONMENT_VARIABLE = "QUORUMLOG_FAILPOINTS"


@dataclass(slots=True)
class _Armed:
    action: str
    nth: int
    and_after: bool
    passes: int = 0


_armed: dict[str, _Armed] = {}
_passes: dict[str, int] | None = None  # Counts per name while a census runs, else None.
is_on = False
"""Whether a point is armed or a census runs. Read it as `failpoints.is_on`: it changes."""


class ShortWrite(Exception):  # noqa: N818  A signal between a failpoint and its call, not an error.
    """Tells a writing call to stop half-way, as a full disk would."""


def hit(name: str) -> None:
    """Pass the named point. Raises OSError or ShortWrite, or never returns, when armed so."""
    if is_on:
        _hit_slowly(name)


def _hit_slowly(name: str) -> None:
    if _passes is not None:
        _passes[name] = _passes.get(name, 0) + 1
    point = _armed.get(name)
    if point is None:
        return
    point.passes += 1
    if point.passes != point.nth and not (point.and_after and point.passes > point.nth):
        return
    if point.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if point.action == "short":
        raise ShortWrite(name)
    code = getattr(errno, point.action)
    raise OSError(code, f"failpoint {name}")


def arm(specification: str) -> None:
    """Arm one or several points. Raises ValueError for a text that is not a specification."""
    for part in filter(None, specification.split(";")):
        name, _, rest = part.partition("=")
        action, _, when = rest.partition("@")
        is_action = action in ("kill", "short") or (action.isupper() and hasattr(errno, action))
        and_after = when.endswith("+")
        nth = when.removesuffix("+") or "1"
        if not (name and is_action and nth.isdecimal() and int(nth) > 0):
            raise ValueError(f"failpoint {part!r}: expected name=EIO|kill|short|...[@n[+]]")
        _armed[name] = _Armed(action, int(nth), and_after)
        _note()


def disarm_all() -> None:
    """Make every point pass again."""
    _armed.clear()
    _note()


def _note() -> None:
    global is_on
    is_on = bool(_armed) or _passes is not None


def arm_from_environment() -> None:
    """Arm the points that QUORUMLOG_FAILPOINTS names; called once when a store opens."""
    specification = os.environ.get(ENVIRONMENT_VARIABLE, "")
    if specification:
        arm(specification)


@contextmanager
def armed(specification: str) -> Iterator[None]:
    """Arm points for the length of a `with` block."""
    arm(specification)
    try:
        yield
    finally:
        disarm_all()


@contextmanager
def census() -> Iterator[dict[str, int]]:
    """Count how often each point is passed, to list the calls that can fail."""
    global _passes
    assert _passes is None, "a census is already running"
    counts: dict[str, int] = {}
    _passes = counts
    _note()
    try:
        yield counts
    finally:
        _passes = None
        _note()
