"""Both command lines refuse what they cannot run, in words and before a run."""

from types import ModuleType

import pytest

import simulation.__main__
import simulation.raft.__main__

OF_BOTH = [f"run --seeds {seeds}" for seeds in ("5..1", "1..x", "1..", "-3..1", f"0..{1 << 64}")]
OF_BOTH += [f"run --seeds 1 {more}" for more in ("--jobs 0", "--seconds 0", "--seconds nan")]
OF_BOTH += ["replay -5", "shrink -5", "replay", "replay --case .", f"replay --case {__file__}"]
OF_RAFT = ["run", "run --seeds 1 --events 0", "replay 1 --events x", "shrink 1"]
OF_NODES = [f"run --seeds 1 --long {long}" for long in ("0", "-5", "inf", "x")]


@pytest.mark.parametrize(
    ("program", "words"),
    [(simulation.__main__, words) for words in OF_BOTH + OF_NODES]
    + [(simulation.raft.__main__, words) for words in OF_BOTH + OF_RAFT],
)
def test_what_can_not_run_is_refused(
    program: ModuleType, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        program.main(words.split())
    said = capsys.readouterr()
    assert (ended.value.code, said.out) == (2, "")
    assert " error: " in said.err
    assert "invalid" not in said.err, "it says what is wanted"
