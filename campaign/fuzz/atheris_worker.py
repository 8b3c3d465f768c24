"""The process of a run that atheris searches: libFuzzer, several times faster than our own search.

Owns the way between atheris and the judgement of `engine`. It needs the package atheris (the extra
`fuzz`), which has no wheel for every Python. Mutations are libFuzzer's and, half of the time, those
of the target; the bound of lines is not kept here, since nothing counts them, and a run ends with
its first crash. A seed gives the same run as long as atheris and Python are the same.
"""

import importlib
import json
import os
import sys
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, Final, NoReturn

from campaign.fuzz.engine import ACCEPTED, REFUSED, Crash, FuzzReport, judge, reduced
from campaign.fuzz.process import CurrentInput, document_of, limit_memory
from campaign.fuzz.target import FuzzTarget
from campaign.fuzz.trace import LineTrace
from campaign.fuzz.worker import arguments_of

ATHERIS: Final = "atheris"
_TIMEOUT_S: Final = 86_400
"""The parent watches for an input that hangs; reducing a crash may take longer than an input."""


class AtherisRun:
    """One run; the process ends with it."""

    def __init__(
        self, target: FuzzTarget, seed: int, count: int, current: CurrentInput, report_path: Path
    ) -> None:
        self._target, self._count = target, count
        self._current, self._report_path = current, report_path
        self._report = FuzzReport(target.name, seed)
        self._atheris: Any = importlib.import_module(ATHERIS)

    def run(self) -> NoReturn:
        """Judge inputs until there were enough, or one crashes."""
        tracemalloc.start(1)
        corpus = self._report_path.with_name("corpus")  # In a directory that the parent removes.
        corpus.mkdir()
        for seed in range(4):
            for number, data in enumerate(self._target.examples(Random(seed))):
                (corpus / f"{seed}-{number}").write_bytes(data)
        options = [f"-seed={self._report.seed}", f"-max_len={self._target.size_bytes_max}"]
        options += [f"-timeout={_TIMEOUT_S}", "-rss_limit_mb=0", "-verbosity=0"]
        options.append(f"-artifact_prefix={corpus.parent}/")
        self._atheris.Setup(
            [ATHERIS, *options, str(corpus)], self._on_input, custom_mutator=self._mutated
        )
        self._atheris.Fuzz()
        raise AssertionError("libFuzzer ends the process")

    def _mutated(self, data: bytes, size_bytes_max: int, seed: int) -> bytes:
        random, target = Random(seed), self._target
        if target.mutated is not None and random.random() < 0.5:
            made = target.mutated(random, bytes(data))
        else:
            made = bytes(self._atheris.Mutate(data, size_bytes_max))
        if target.repaired is not None and random.random() < 0.8:
            made = target.repaired(made)
        return made[:size_bytes_max]

    def _on_input(self, data: bytes) -> None:
        report, target = self._report, self._target
        self._current.note(report.input_count, data)
        kind, detail = judge(target, data, None)
        if report.input_count == 0 and kind.startswith("memory"):
            kind = ACCEPTED  # The first input fills the caches of the parser.
        report.accepted_count += kind == ACCEPTED
        if kind not in (ACCEPTED, REFUSED):
            small = reduced(target, data, kind, LineTrace(target.modules))
            report.crashes.append(Crash(target.name, kind, detail, small, report.input_count))
        report.input_count += 1
        if report.crashes or report.input_count >= self._count:
            self._report_path.write_text(json.dumps(document_of(report)), "utf-8")
            os._exit(0)


def main(arguments: Sequence[str]) -> NoReturn:
    """Run one target."""
    parsed = arguments_of(arguments)
    atheris: Any = importlib.import_module(ATHERIS)
    # The modules of all targets, and whatever of ours they import.
    ours = ["node", "raft", "store", "quorumlog", parsed.registry]
    with atheris.instrument_imports(include=ours):
        targets = importlib.import_module(parsed.registry).TARGETS
    limit_memory(parsed.memory)
    current = CurrentInput(parsed.current)
    AtherisRun(targets[parsed.target], parsed.seed, parsed.count, current, parsed.report).run()


if __name__ == "__main__":
    main(sys.argv[1:])
