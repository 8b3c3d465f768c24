"""The versions of the peers: pinned with hashes, and named where one is missing."""

import asyncio
import re
import subprocess
from pathlib import Path

import pytest

from bench.peers import installed
from bench.peers.java_programs import run_java
from bench.peers.peer import PeerFailedError
from tests import missing

INSTALL = Path(installed.__file__).parent / "install"


@pytest.mark.parametrize("peer", ["etcd", "nats", "kafka", "bookkeeper", "rocketmq"])
def test_peer_that_is_not_installed_names_the_part(
    peer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = tmp_path / "java"
    java.touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("QUORUMLOG_CACHE", str(tmp_path))
    why = installed.why_missing(peer)
    version = installed.installed_version(peer)
    assert why == f"no {peer} {version} in the cache; run bench/peers/install {peer}"


def test_machine_without_java_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "no java" in str(installed.why_missing("kafka"))


@pytest.mark.parametrize("peer", ["etcd", "nats"])
def test_servers_in_go_are_pinned_with_hashes(peer: str) -> None:
    text = (INSTALL.parent / peer / "go.sum").read_text("utf-8")
    module = {"etcd": "go.etcd.io/etcd/server/v3", "nats": "github.com/nats-io/nats-server/v2"}
    version = installed.installed_version(peer)
    assert re.search(rf"^{re.escape(module[peer])} v{version} h1:\S{{44}}$", text, re.MULTILINE)


def test_installer_refuses_a_part_that_it_lacks() -> None:
    done = subprocess.run([INSTALL, "zookeeper"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "there is no part 'zookeeper'" in done.stderr


@pytest.mark.long  # A JVM.
def test_program_in_java_that_fails_says_why(tmp_path: Path) -> None:
    if (why := installed.why_missing("kafka")) is not None:
        missing.program(why)
    tool = "kafka.tools.StorageTool"
    with pytest.raises(PeerFailedError, match=rf"{tool} ended with 1: .*nowhere"):
        asyncio.run(run_java("kafka", str(tmp_path), tool, ["format", "-t", "x", "-c", "nowhere"]))
