"""A calibration of little work: its file can be used and bytes are predicted; no time is judged."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench.calibration import CHECKED_KINDS, KINDS, compared
from bench.limits import disk_bytes_per_second
from bench.own_cluster import directory_made
from planning.commands import calibration_file
from qlog import main
from tests.qlog.running import check_keys


@pytest.mark.long
def test_a_calibration_is_measured_checked_and_used(tmp_path: Path) -> None:
    path = tmp_path / "here.json"
    command = ["bench", "calibrate", str(path), "--quick", "--check", "-o", "json"]
    result = CliRunner().invoke(main, command, prog_name="qlog")
    assert result.exit_code in (0, 1), (result.stdout, result.stderr)
    record = json.loads(result.stdout)
    check_keys(record, "bench", "calibrate")
    # The exit code says whether all bounds are met, and on a busy machine they need not be.
    assert (result.exit_code == 0) == all(row["met"] for row in record["checks"])
    loaded = calibration_file.load(str(path))
    assert loaded.is_measured
    assert loaded.to_json() == record["calibration"]
    assert [(one.batch_count, one.body_size_bytes) for one in loaded.appends] == list(KINDS)
    assert all(one.leader_cpu_s < one.nodes_cpu_s for one in loaded.appends)
    assert len(record["checks"]) == 2 * len(CHECKED_KINDS) + 3
    [growth] = [row for row in record["checks"] if row["what"].startswith("log of")]
    assert growth["met"], growth
    load = ["--rate", "5msg/s", "--size", "1KiB", "--retention", "1h", "--zones", "3"]
    planned = CliRunner().invoke(main, ["plan", *load, "--calibration", str(path)])
    assert planned.exit_code == 0, planned.output
    assert loaded.source in planned.stdout


def test_a_place_that_cannot_be_written_is_told_at_once(tmp_path: Path) -> None:
    command = ["bench", "calibrate", str(tmp_path / "none" / "here.json")]
    result = CliRunner().invoke(main, command, prog_name="qlog")
    assert result.exit_code == 3
    assert "No such file or directory" in result.stderr


@pytest.mark.parametrize(
    ("predicted", "met"), [(1.0, True), (1.2, True), (1.21, False), (0.8, True), (0.79, False)]
)
def test_a_prediction_is_judged_by_its_bound(predicted: float, met: bool) -> None:
    row = compared("x", predicted, 1.0, bound=0.2 + 1e-9)
    assert row["met"] is met
    assert row["error"] == pytest.approx(predicted - 1)


def test_the_disk_is_measured_and_nothing_is_left(tmp_path: Path) -> None:
    written, read = disk_bytes_per_second(str(tmp_path), 4 << 20)
    assert min(written, read) > 0
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_a_run_made_is_gone_unless_something_is_in_it(tmp_path: Path) -> None:
    for words, is_left in (([], False), (["log"], True)):
        place = tmp_path / "made"
        with directory_made(str(place)):
            for word in words:
                (place / word).touch()
        assert place.exists() == is_left
    with directory_made(str(tmp_path)):
        pass
    assert tmp_path.exists()
