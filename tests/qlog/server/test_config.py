"""`qlog config check` and `qlog config show`."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from node.config.settings import Settings
from qlog import main


def run(*arguments: str) -> Result:
    """Run `qlog config`."""
    return CliRunner().invoke(main, ["config", *arguments], prog_name="qlog")


def test_good_settings_have_no_problems(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text('node_id = 1\ndirectory = "d"\n')
    result = run("check", str(file))
    assert (result.exit_code, result.stdout) == (0, "nothing is wrong\n")
    assert json.loads(run("check", str(file), "-o", "json").stdout) == []


def test_problems_are_rows_and_exit_code_1(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text('node_id = 1\ndirectory = "d"\nflsh = 1\n')
    result = run("check", str(file), "--log-level", "loud", "-o", "json")
    assert result.exit_code == 1
    assert json.loads(result.stdout) == [
        {
            "severity": "error",
            "key": "flsh",
            "value": "",
            "origin": f"{file}:3",
            "what": "unknown key",
            "suggestion": "did you mean flush?",
        },
        {
            "severity": "error",
            "key": "log_level",
            "value": "loud",
            "origin": "flag --log-level",
            "what": "Input should be 'debug', 'info', 'warning' or 'error'",
            "suggestion": "use debug or info or warning or error",
        },
    ]


def test_a_port_that_a_stranger_could_misuse_is_a_warning(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef")
    secret.chmod(0o600)
    file.write_text(
        'node_id = 1\ndirectory = "d"\nadvertise = "a:1"\nlisten = "0.0.0.0:8081"\n'
        f'peer_listen = "0.0.0.0:40911"\nsecret_file = "{secret}"\n'
    )
    result = run("check", str(file), "-o", "json")
    row, framed = json.loads(result.stdout)
    assert result.exit_code == 0
    assert (row["severity"], row["key"], row["origin"]) == ("warning", "listen", f"{file}:4")
    assert (framed["key"], framed["origin"]) == ("listen_framed", "default")
    assert "may read, append and administer in clear text" in row["what"]
    shown = run("check", str(file)).stdout
    assert shown.startswith("nothing is wrong, with these warnings:\n")

    file.write_text(file.read_text().replace("secret_file", "#"))
    result = run("check", str(file), "-o", "json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)[0]["key"] == "peer_listen + secret_file"

    word = "anyone-who-can-dial-may-be-a-node"
    result = run("check", str(file), "--unproven-peers", word, "-o", "json")
    assert result.exit_code == 0
    assert [row["key"] for row in json.loads(result.stdout)] == [
        "peer_listen",
        "listen",
        "listen_framed",
    ]


def test_show_names_every_setting_and_its_origin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "node.toml"
    file.write_text('node_id = 1\ndirectory = "d"\n[peers.1]\naddress="a:1"\npeer_address="b:2"\n')
    rows = json.loads(run("show", str(file), "--origin", "--no-warm-up", "-o", "json").stdout)
    assert [row["setting"] for row in rows] == list(Settings.model_fields)
    settings = {row["setting"]: (row["value"], row["origin"]) for row in rows}
    assert settings["directory"] == ("d", f"{file}:2")
    assert settings["peers"] == ({"1": {"address": "a:1", "peer_address": "b:2"}}, f"{file}:3")
    assert settings["warm_up"] == (False, "flag --no-warm-up")
    assert settings["flush"] == ("sync", "default")
    assert set(json.loads(run("show", str(file), "-o", "json").stdout)[0]) == {"setting", "value"}
    monkeypatch.setenv("COLUMNS", "80")
    assert "\n\n" not in run("show", "--node-id", "1", "--directory", "d", "--origin").stdout


def test_show_of_wrong_settings_names_all_of_them() -> None:
    result = run("show", "--flush", "never")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: 3 settings are wrong\n  why: ")
    assert all(word in result.stderr for word in ("node_id", "directory", "flush = never"))
