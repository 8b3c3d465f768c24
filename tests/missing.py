"""What a test needs from the machine and does not find there.

Owns the one place from which tests are skipped (tests/tidy demands it). A fault that cannot be
injected is a promise that nobody has looked at: where everything must be looked at (`CI` is set, by
the rule of the fault suites) it fails the test.
"""

from pathlib import Path
from typing import NoReturn

import pytest
from chaos.errors import is_all_demanded

from deploy.cache import NotInstalledError, find


def installed(name: str) -> Path:
    """Return the directory of a part of deploy/cache.py. No test makes it: a test needs neither
    the network nor that another test has run."""
    try:
        return find(name)
    except NotInstalledError as error:
        foreign(error)


def injector(reason: object) -> NoReturn:
    """There is no Toxiproxy, no compiler for the shim, no right to mount: fail in CI, else skip."""
    if is_all_demanded():
        pytest.fail(f"a fault cannot be injected: {reason}; install what is missing")
    pytest.skip(f"a fault cannot be injected: {reason}")


def foreign(reason: object) -> NoReturn:
    """The code of another project, which has to read our files, cannot run: fail in CI, or skip."""
    if is_all_demanded():
        pytest.fail(f"not run: {reason}; install what is missing")
    pytest.skip(f"not run: {reason}")


def program(reason: object) -> NoReturn:
    """There is no server of another project to compare with, or no checker of theirs, or a package
    of an extra is not installed: skip."""
    pytest.skip(str(reason))
