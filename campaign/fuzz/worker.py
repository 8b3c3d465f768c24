"""The process of a run: limits its memory first, then runs, and writes its report.

Owns the arguments between `process` and this one. Must not know what a finding means.
"""

import argparse
import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from campaign.fuzz.engine import FuzzRun
from campaign.fuzz.process import CurrentInput, document_of, limit_memory


def arguments_of(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the arguments that `process` gives."""
    parser = argparse.ArgumentParser(prog="python -m campaign.fuzz.worker", description=__doc__)
    parser.add_argument("target")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--memory", type=int, required=True, help="address space in MiB")
    parser.add_argument("--current", type=Path, required=True, help="file for the input in hand")
    parser.add_argument("--report", type=Path, required=True, help="file for the report")
    parser.add_argument("--registry", required=True, help="module with TARGETS")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Run one target; return the exit code: 0 if the run came to its end."""
    parsed = arguments_of(arguments)
    limit_memory(parsed.memory)
    target = importlib.import_module(parsed.registry).TARGETS[parsed.target]
    current = CurrentInput(parsed.current)
    report = FuzzRun(target, parsed.seed).run(parsed.count, on_input=current.note)
    parsed.report.write_text(json.dumps(document_of(report)), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
