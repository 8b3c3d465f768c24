"""Cases that need much of a processor are done by two processes, one a core.

Owns the processes and the order of the results; must not know what a case is.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

PROCESS_COUNT: Final = 2
TIMEOUT_S: Final = 300
_ROOT: Final = Path(__file__).resolve().parents[1]


def in_two_processes(module: str, *arguments: object, cases: Sequence[object]) -> list[Any]:
    """Have `python -m MODULE ARGUMENTS... CASES` do every other case; return a result for each.

    CASES and what the module prints are lists in JSON. A process that fails fails the test, with
    what it said.
    """
    results: list[Any] = [None] * len(cases)

    def work(first: int) -> None:
        own = json.dumps(list(cases[first::PROCESS_COUNT]))
        ran = subprocess.run(
            [sys.executable, "-m", module, *map(str, arguments), own],
            cwd=_ROOT,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert ran.returncode == 0, f"{module} {arguments}:\n{ran.stderr}"
        results[first::PROCESS_COUNT] = json.loads(ran.stdout)

    with ThreadPoolExecutor(PROCESS_COUNT) as pool:
        list(pool.map(work, range(PROCESS_COUNT)))
    return results
