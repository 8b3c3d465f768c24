"""`qlog context`: which cluster commands use, and that it is nothing but what was saved."""

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NoReturn

import pytest
from click.testing import CliRunner, Result

from qlog import main
from qlog.connection import (
    CA_VARIABLE,
    CERTIFICATE_VARIABLE,
    KEY_VARIABLE,
    SERVER_VARIABLE,
    addresses,
)
from qlog.contexts import path
from qlog.server.authority import Authority
from quorumlog.command_errors import CliError
from tests.node.processes import SingleNode
from tests.patience import PATIENCE_S


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of settings; no variable names a cluster."""
    for name in (SERVER_VARIABLE, CA_VARIABLE, CERTIFICATE_VARIABLE, KEY_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path / "quorumlog"


def run(*words: object, code: int = 0) -> Result:
    result = CliRunner().invoke(main, [str(word) for word in words], prog_name="qlog")
    assert result.exit_code == code, (result.stdout, result.stderr)
    return result


def in_use() -> list[str]:
    rows = json.loads(run("context", "list", "-o", "json").stdout)
    return [row["context"] for row in rows if row["is_current"]]


def test_commands_use_the_servers_and_the_files_of_a_context(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Authority(tmp_path).files("node")
    flags = {f"tls_{name}_file": str(file) for name, file in own._asdict().items()}
    files = [word for name, file in own._asdict().items() for word in (f"--tls-{name}", file)]
    with SingleNode(tmp_path / "n", **flags, tls_client_auth="") as node:
        at = node.node_json()["address"]
        made = run("context", "create", "prod", "--server", at, *files).stdout
        assert f"tls_ca           {own.ca}\n" in made
        assert (home / "contexts.json").stat().st_mode & 0o777 == 0o600
        run("context", "use", "prod")
        assert run("context", "list").stdout.splitlines()[2].startswith("*  prod     127.0.0.1:")
        monkeypatch.chdir("/")
        run("topic", "create", "orders")
        assert "orders" in run("topic", "list").stdout
        # The files belong to the servers of the context: others do not get them.
        assert "speaks TLS" in run("topic", "list", "--server", at, code=3).stderr
        monkeypatch.setenv(CA_VARIABLE, str(own.ca))
        _, why, do = run("topic", "list", code=3).stderr.splitlines()
        assert "; context 'prod' gave the address, variables the TLS files (code " in why
        assert do.startswith("  do:  leave context 'prod' with 'qlog context use default', or ")
        used, saved = (json.loads(run("context", "show", *name, "-o", "json").stdout)
                       for name in ((), ("prod",)))  # fmt: skip
        assert {"name": "tls_ca", "value": str(own.ca), "source": CA_VARIABLE} in used
        assert {"name": "tls_key", "value": str(own.key), "source": "context 'prod'"} in saved
        assert "tls_key          -" in run("context", "show").stdout, "variables go first"


def test_a_context_is_chosen_by_name_and_taken_out(home: Path) -> None:
    run("context", "create", "one", "--server", "127.0.0.1:1")
    assert in_use() == ["default"]
    run("context", "use", "one")
    assert addresses(None) == "127.0.0.1:1"
    assert "did you mean 'one'?" in run("context", "use", "on", code=4).stderr
    assert "there is a context 'one'" in run("context", "create", "one", "-s", "a:1", code=3).stderr
    assert "the local cluster" in run("context", "create", "default", "-s", "a:1", code=2).stderr
    run("context", "use", "default")
    run("context", "use", "one")
    looks = ["topic", "list", "--timeout", "200ms"]
    assert "no node of context 'one' could be reached" in run(*looks, code=3).stderr
    assert "no node of --server could be" in run(*looks, "-s", "127.0.0.1:1", code=3).stderr
    listed = run("context", "list").stdout
    assert "commands use 'one'\n" in listed
    assert "'default' is the cluster of 'qlog local'" in listed
    assert "commands use 'default' now" in run("context", "delete", "one", "--yes").stdout
    assert in_use() == ["default"]
    assert not [*home.iterdir()]
    run("context", "show", "one", code=4)


@pytest.mark.parametrize("name", ["", "a/b", "a\x1b[31m", "a" * 65, "-x", ".x", "é"])
def test_a_name_that_others_could_not_have_is_refused(home: Path, name: str) -> None:
    refused = run("context", "create", "-s", "a:1", "--", name, code=2).stderr
    assert "is no name of a context" in refused
    assert "a name has 1 to 64 of letters, digits, '.', '_' and '-'" in refused
    assert not home.exists()


BROKEN = {
    "other": b"[]",
    "no files": b'{"current": "default", "contexts": {"a": {"server": "a:1"}}}',
    "strange": b'{"current": "default", "contexts": {"a": {"server": "a:1", "tls": {}, "x": ""}}}',
    "types": b'{"current": "default", "contexts": {"a": {"server": 3, "tls": {}}}}',
    "no choice": b'{"current": "a", "contexts": {}}',
    "deep": b"[" * 100_000,
    "no UTF-8": b"\xff",
}


@pytest.mark.parametrize("fault", [*BROKEN, "directory", "FIFO", "dangling link"])
def test_a_broken_file_leads_to_no_other_cluster_and_is_named(home: Path, fault: str) -> None:
    home.mkdir()
    file = home / "contexts.json"
    if fault == "directory":
        file.mkdir()
    elif fault == "FIFO":
        os.mkfifo(file)
    elif fault == "dangling link":
        file.symlink_to("none")
    else:
        file.write_bytes(BROKEN[fault])
    for words in (["topic", "list"], ["context", "list"], ["context", "create", "b", "-s", "a:1"]):
        what, why, do = run(*words, code=2).stderr.splitlines()
        assert what == f"error: {file} has no contexts that can be read"
        assert do.startswith("  do:  ")
        assert "Error" not in why, "Python's words"
        assert "object" not in why


def test_contexts_that_are_made_at_once_are_all_there(home: Path) -> None:
    make = "import sys; from qlog import main; main()"
    names = [f"c{number}" for number in range(4)]
    words = [[sys.executable, "-c", make, "context", "create", one, "-s", "a:1"] for one in names]
    makers = [subprocess.Popen(each, stdout=subprocess.DEVNULL) for each in words]
    assert [maker.wait(PATIENCE_S) for maker in makers] == [0] * len(names)
    rows = json.loads(run("context", "list", "-o", "json").stdout)
    assert [row["context"] for row in rows] == [*names, "default"]


def test_a_context_has_the_keys_of_a_source_and_shows_none(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys, ca = tmp_path / "keys.txt", Authority(tmp_path).path
    files = ["--source-keys", keys, "--source-ca", ca]
    for content, why in (
        (None, "there is no such file"),
        ("root:x:0:0:root\n", "line 1 has 1 words"),
    ):
        if content is not None:
            keys.write_text(content)
        refused = run("context", "create", "to", "-s", "127.0.0.1:1", *files, code=2).stderr
        assert f"from {keys}\n  why: {why}" in refused
    keys.write_text("mine hidden-word\n")
    run("context", "create", "to", "-s", "127.0.0.1:1", *files)
    run("context", "use", "to")
    for form in ("table", "json"):
        shown = run("context", "list", "-o", form).stdout
        assert "set" in shown
        assert "keys.txt" not in shown
        assert "hidden-word" not in shown
    used: list[object] = []

    @asynccontextmanager
    async def no_cluster(_server: object, **_: object) -> AsyncIterator[None]:
        yield None

    def access_of(*given: object) -> NoReturn:
        used.append(given)
        raise CliError("stop", "here", "")

    monkeypatch.setattr("qlog.connection.connected", no_cluster)
    monkeypatch.setattr("qlog.rocketmq.source.access_of", access_of)
    run("rocketmq", "import", "127.0.0.1:9", code=3)
    run("rocketmq", "import", "127.0.0.1:9", "-s", "127.0.0.1:2", code=3)
    assert used == [(keys, ca), (None, None)], "they belong to the servers of the context"


def test_a_file_of_a_context_that_has_gone_is_that_of_the_context(
    home: Path, tmp_path: Path
) -> None:
    ca = Authority(tmp_path).path
    run("context", "create", "prod", "-s", "127.0.0.1:1", "--tls-ca", ca)
    run("context", "use", "prod")
    ca.unlink()
    _, why, do = run("topic", "list", code=2).stderr.splitlines()
    assert "context 'prod' names the file" in why
    assert "qlog context delete prod" in do


def test_a_place_that_cannot_be_looked_into_has_contexts_perhaps(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: object, **_: object) -> NoReturn:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("quorumlog.user_files.os.stat", refuse)  # Root may look everywhere.
    with pytest.raises(CliError, match="cannot be read") as caught:
        addresses(None)
    assert str(home) in str(caught.value)
    assert "Permission denied" in caught.value.explanation.why


def test_a_relative_place_of_settings_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for relative in ("here", ""):
        monkeypatch.setenv("XDG_CONFIG_HOME", relative)
        assert path() == tmp_path / ".config/quorumlog/contexts.json"
