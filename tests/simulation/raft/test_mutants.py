"""Planted faults stay worth something: each still fits the source, and a share of them is hunted.

All of them are hunted by `python -m simulation.raft mutants`, which takes too long for a suite.
"""

from __future__ import annotations

import re
from pathlib import Path
from random import Random

import pytest

from simulation.mutants import Switch, read
from simulation.raft.__main__ import MUTANTS, main
from tests import seeds

ROOT = Path(__file__).resolve().parents[3]
BY_SEEDS = [mutant for mutant in MUTANTS if isinstance(mutant.killer, int)]
DIRECTED = [mutant for mutant in MUTANTS if isinstance(mutant.killer, str)]
BY_SEEDS_COUNT, DIRECTED_COUNT = 4, 2


def test_every_mutant_still_fits_the_source() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    for mutant in MUTANTS:
        Switch(mutant)


def test_every_directed_test_is_there() -> None:
    for mutant in DIRECTED:
        path, _, name = str(mutant.killer).partition("::")
        head = rf"^(async )?def {re.escape(name.partition('[')[0])}\("
        found = re.search(head, (ROOT / path).read_text(), re.MULTILINE)
        assert found, f"{mutant.name}: there is no {mutant.killer}"


@pytest.mark.parametrize(
    "row",
    [
        "a | R01 | m:f | 25\n",
        "a | R01 | m:f\n    old - new\n",
        "a | R01 | m:f\n    old => new\n",
        "a | R01 | m:f | 25\n    old => new\n    tests/x.py::test\n",
    ],
)
def test_a_row_of_another_form_is_refused(tmp_path: Path, row: str) -> None:
    table = tmp_path / "mutants.txt"
    table.write_text(f"# A comment.\n\nb | R02 | m:g | 60\n    old => new\n{row}")
    with pytest.raises(ValueError, match="'a"):
        read(table)


@pytest.mark.long
def test_a_share_of_the_planted_faults_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    """What is printed says how to hunt the same ones again."""
    random = Random(seeds.drawn("tests/simulation/raft/test_mutants.py"))
    chosen = random.sample(BY_SEEDS, BY_SEEDS_COUNT) + random.sample(DIRECTED, DIRECTED_COUNT)
    names = [mutant.name for mutant in chosen]
    code, output = main(["mutants", *names]), capsys.readouterr().out
    command = f"python -m simulation.raft mutants {' '.join(names)}"
    assert code == 0, f"{command}\n{output}"
    with capsys.disabled():
        print(f"\n{output.splitlines()[-1]}: {command}")
