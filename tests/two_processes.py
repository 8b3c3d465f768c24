"""Modules that tests run in processes of their own; cases that need much of a processor in two.

Owns the processes and the order of the results; must not know what a case is.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

PROCESS_COUNT: Final = 2
TIMEOUT_S: Final = 900
_ROOT: Final = Path(__file__).resolve().parents[1]


def run_module(
    module: str, *arguments: object, hash_seed: str = "random"
) -> subprocess.CompletedProcess[str]:
    """Run `python -m MODULE ARGUMENTS` to its end; `hash_seed` is PYTHONHASHSEED."""
    return subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments)],
        cwd=_ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def results_of(module: str, *arguments: object, hash_seed: str = "random") -> list[Any]:
    """Return the list in JSON that a module prints. Fails the test if the module does."""
    ran = run_module(module, *arguments, hash_seed=hash_seed)
    assert ran.returncode == 0, f"{module} {arguments}:\n{ran.stderr}"
    parsed: list[Any] = json.loads(ran.stdout)
    return parsed


def in_two_processes(module: str, *arguments: object, cases: Sequence[object]) -> list[Any]:
    """Have `python -m MODULE ARGUMENTS... CASES` do every other case; return a result for each.

    CASES and what the module prints are lists in JSON. A process that fails fails the test, with
    what it said.
    """
    results: list[Any] = [None] * len(cases)

    def work(first: int) -> None:
        own = json.dumps(list(cases[first::PROCESS_COUNT]))
        results[first::PROCESS_COUNT] = results_of(module, *arguments, own)

    with ThreadPoolExecutor(PROCESS_COUNT) as pool:
        list(pool.map(work, range(PROCESS_COUNT)))
    return results
