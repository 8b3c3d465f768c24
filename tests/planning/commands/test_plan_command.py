"""`qlog plan` and `qlog fleet`: their output, exit codes and errors."""

import json
import os
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from planning.commands import calibration_file
from qlog import main
from tests.planning.capacity.sizes import calibration
from tests.qlog.running import check_keys

LOAD = ("--rate", "20kmsg/s", "--size", "1KiB", "--batch", "50", "--retention", "1h")
SAFE = (*LOAD, "--zones", "3")


def qlog(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(main, list(arguments), prog_name="qlog")
    assert result.exit_code == code, (result.exit_code, result.stdout, result.stderr)
    return result


def qlog_json(*arguments: str, code: int = 0) -> Any:
    answer = json.loads(qlog(*arguments, "-o", "json", code=code).stdout)
    check_keys(answer, *arguments)
    return answer


def test_a_plan_has_figures_with_formulas() -> None:
    answer = qlog_json("plan", *SAFE)
    assert answer["warnings"] == []
    assert answer["calibration"].startswith("built in")
    by_name = {row["figure"]: row for row in answer["figures"]}
    assert by_name["record_size_bytes"]["value"] == 91 + 32 + 64 + 1024
    assert by_name["host_count"]["value"] % 3 == 0
    assert answer["broker_group_bottleneck"] in by_name
    table = qlog("plan", *SAFE)
    assert table.stdout.splitlines()[0].split(maxsplit=1) == ["answer", answer["answer"]]
    hosts = f"{by_name['host_count']['value']:.0f} hosts"
    groups = f"{by_name['broker_group_count']['value']:.0f} broker groups"
    assert f"20,000 msg/s of 1,024 B, kept for 1 h, need {hosts} (by" in answer["answer"]
    assert f") with {groups} of 3 nodes" in answer["answer"]
    for figure in by_name:
        assert figure in table.stdout
    assert [line for line in table.output.splitlines() if "note:" in line] == [
        table.output.splitlines()[-1]
    ], "it comes after the answer"
    assert table.stderr.startswith("note: nothing was measured")


def test_a_plan_of_one_counts_in_the_singular() -> None:
    small = ("--rate", "50msg/s", "--size", "1KiB", "--copies", "1", "--failures", "0")
    text = qlog("plan", *small).stdout
    assert "need 1 host (by" in text
    assert not re.findall(r"\b1 [a-z_]+s\b", text.replace("1 ms", ""))


@pytest.mark.parametrize(
    ("words", "missing"),
    [(("plan",), "--rate"), (("fleet",), "--rate"), (("plan", "--rate", "5msg/s"), "--size")],
)
def test_option_that_is_missing_is_named(words: tuple[str, ...], missing: str) -> None:
    assert f"Missing option '{missing}'" in qlog(*words, code=2).stderr


def test_a_warning_is_a_finding() -> None:
    answer = qlog_json("plan", *SAFE, "--failures", "2", code=1)
    assert answer["answer"].endswith("; 1 warning says why not to build it as it stands")
    assert ["2 failures cannot" in warning for warning in answer["warnings"]] == [True]
    assert "\nwarning: 2 failures cannot" in qlog("plan", *SAFE, "--failures", "2", code=1).stdout


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (("--rate", "5"), "no rate"),
        (("--copies", "12"), "--copies (copies) is 12"),
        (("--batch", "0"), "--batch (batch_count) is 0"),
        (("--rate", "0msg/s"), "--rate (peak_msgs_per_s) is 0"),
        (("--host-cores", "0"), "--host-cores (cores) = 0"),
        (("--average", "1Mmsg/s"), "above the peak"),
        (("--size", "0", "--rate", "1MB/s"), "at least 1 byte"),
        (("--host-disk", "1GiB"), "however small its share is"),
        (("--batch", "10000"), "the largest entry"),
    ],
)
def test_a_load_without_sense_is_a_usage_error(changes: tuple[str, ...], text: str) -> None:
    for command in ("plan", "fleet"):
        stderr = qlog(command, *SAFE, *changes, code=2).stderr
        assert text in stderr
        assert len([line for line in stderr.splitlines() if not line.startswith("note")]) == 3


def test_a_calibration_is_read(tmp_path: Path) -> None:
    path = tmp_path / "here.json"
    calibration_file.save(calibration(), str(path))
    assert [one.name for one in tmp_path.iterdir()] == ["here.json"]
    result = qlog("plan", *SAFE, "--calibration", str(path))
    assert "calibration              a test\n" in result.stdout
    assert result.stderr == ""
    fleet = ("fleet", *SAFE, "--placement")
    assert "note: nothing was measured" in qlog(*fleet).stderr
    assert qlog(*fleet, "--calibration", str(path)).stderr == ""


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        "[" * 10**5,
        '{"version": 1}',
        " " * calibration_file.FILE_SIZE_BYTES_MAX + "1",
    ],
)
def test_another_file_is_no_calibration(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    stderr = qlog("plan", *SAFE, "--calibration", str(path), code=2).stderr
    assert "is no calibration" in stderr
    assert f"calibrate {path}" not in stderr, "the advice would overwrite a file of something else"


def test_a_calibration_that_would_never_end_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero"):
        assert "and no file" in qlog("plan", *SAFE, "--calibration", str(path), code=2).stderr


def test_a_calibration_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    stderr = qlog("plan", *SAFE, "--calibration", str(tmp_path / "none"), code=2).stderr
    assert "there is no such file" in stderr


def test_a_fleet_is_simulated(tmp_path: Path) -> None:
    options = ("--broker-groups", "12", "--hosts", "6", "--duration", "10m", "--retention", "1m")
    answer = qlog_json("fleet", *SAFE, *options)
    assert (answer["host_count"], answer["broker_group_count"], answer["lost_count"]) == (6, 12, 0)
    assert [text.partition(":")[0] for text in answer["faults"]] == ["host", "lost", "zone"]
    assert answer["samples"][-1]["at_s"] == 600
    table = qlog("fleet", *SAFE, *options, "--fault", "zone:z1@60+120").stdout
    assert "zone:z1@60+120" in table
    assert answer == qlog_json("fleet", *SAFE, *options, "--seed", "1")


def test_a_placement_is_printed_instead() -> None:
    options = ("--broker-groups", "12", "--hosts", "6", "--placement", "-o", "json")
    rows = json.loads(qlog("fleet", *SAFE, *options).stdout)
    assert [row["broker_group"] for row in rows] == [f"g{n}" for n in range(12)]
    assert Counter(row["leader"] for row in rows).most_common(1)[0][1] == 2
    for row in rows:
        assert row["leader"] in row["hosts"]
        assert sorted(host[:2] for host in row["hosts"]) == ["z0", "z1", "z2"]


def test_a_quorum_that_is_lost_is_a_finding() -> None:
    options = ("--broker-groups", "4", "--hosts", "3", "--duration", "10m")
    faults = ("--fault", "host:z0-h0@60+60", "--fault", "host:z1-h0@60+60")
    assert qlog_json("fleet", *SAFE, *options, *faults, code=1)["no_quorum_count_max"] == 4


@pytest.mark.parametrize(
    ("option", "text"),
    [
        (("--fault", "x"), "is no fault"),
        (("--fault", "host:z0-h0@5"), "is no fault"),
        (("--fault", "lost:z0-h0@5+5"), "is no fault"),
        (("--fault", "zone:z9@5+5"), "names nothing of the fleet"),
        (("--hosts", "2"), "has no host for copy 3"),
        (("--hosts", "1001"), "1 to 1000 are simulated"),
        (("--random-faults", "1001"), "at most 1000"),
        (("--broker-groups", "5001"), "1 to 5000"),
        (("--fault", "zone:z0-h0@5+5"), "names nothing of the fleet"),
        (("--duration", "0s"), "1 s to 366 days"),
        (("--duration", "3660d"), "1 s to 366 days"),
        (("--fault", "host:z0-h0@5000+60"), "begins at 5000 s, and the run ends at 3600 s"),
        (("--fault", "host:z0-h0@5+6", "--random-faults", "3"), "give one of them"),
        (("--placement", "--plot", "x.png"), "simulates nothing"),
        (("--plot", "x.foo"), "'x.foo' is no file of a plot"),
        (("--plot", "none/x.png"), "is no file in a directory that exists"),
    ],
)
def test_a_fleet_without_sense_is_a_usage_error(option: tuple[str, ...], text: str) -> None:
    assert text in qlog("fleet", *SAFE, *option, code=2).stderr


def test_a_plot_without_matplotlib_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.backend_bases", None)
    stderr = qlog("fleet", *SAFE, "--plot", "x.png", code=3).stderr
    assert "pip install 'quorumlog[plot]'" in stderr.splitlines()[-1]


@pytest.mark.long
def test_a_plot_is_drawn(tmp_path: Path) -> None:
    path = tmp_path / "fleet.svg"
    qlog(
        "fleet",
        *SAFE,
        "--broker-groups",
        "9",
        "--hosts",
        "6",
        "--retention",
        "1m",
        "--plot",
        str(path),
    )
    assert path.read_text().lstrip().startswith("<?xml")
