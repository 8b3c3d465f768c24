"""`qlog debug bundle`: one archive of a real cluster, without secrets."""

import io
import json
import re
import sys
import tarfile
from pathlib import Path

import pytest
import zstandard

from deploy.local import LocalCluster
from node.config.settings import Settings
from qlog.connection import CA_VARIABLE, CERTIFICATE_VARIABLE, KEY_VARIABLE
from tests.node.peers.certificates import tls_settings
from tests.node.users_files import user_settings
from tests.qlog.running import Qlog


def parts_of(file: Path) -> dict[str, str]:
    """The texts of a bundle by the names below its directory."""
    data = file.read_bytes()
    if file.suffix == ".zst":
        data = zstandard.ZstdDecompressor().decompressobj().decompress(data)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return {
            one.name.partition("/")[2]: tar.extractfile(one).read().decode()  # type: ignore[union-attr]
            for one in tar.getmembers()
        }


def test_a_bundle_has_what_all_nodes_say(qlog: Qlog, topic: str, tmp_path: Path) -> None:
    qlog.produce(tmp_path, topic, "body-that-stays\n")
    for name in ("b.tar.zst", "b.tar.gz"):
        result = qlog.json("debug", "bundle", tmp_path / name)
        file = tmp_path / name
        assert (result["complete"], result["size_bytes"]) == (True, file.stat().st_size)
        assert file.stat().st_mode & 0o777 == 0o600
        parts = parts_of(file)
        assert {one["name"]: one["size_bytes"] for one in result["files"]} == {
            name: len(text.encode()) for name, text in parts.items()
        }
        for node in qlog.nodes.node_ids:
            settings = json.loads(parts[f"nodes/{node}/settings.json"])
            origins = {one["name"]: (one["value"], one["origin"]) for one in settings}
            assert origins["node_id"][0] == node
            assert origins["node_id"][1] != "default"
            assert origins["join"] == (False, "default")
            assert "# TYPE quorumlog_" in parts[f"nodes/{node}/metrics.txt"]
            assert re.search(
                r"MainThread\n(.*\n)+\d+ tasks\ntask \w", parts[f"nodes/{node}/stacks.txt"]
            )
            assert json.loads(parts[f"nodes/{node}/events.json"])["events"]
            assert json.loads(parts[f"nodes/{node}/tail.json"])[-1]["chain_crc"]
        assert topic in parts["topics.json"]
        assert "body-that-stays" not in "".join(parts.values())
    assert "File exists" in qlog("debug", "bundle", tmp_path / "b.tar.gz", code=3).stderr
    assert "one.zip.tar.zst" in qlog("debug", "bundle", tmp_path / "one.zip", code=2).stderr


def test_no_byte_of_a_secret_is_in_a_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, given = tls_settings(tmp_path)
    given |= user_settings(tmp_path, "prepare")
    planted = {"nameserver_secret_file": "p" * 20}
    for setting, text in planted.items():
        given[setting] = str(tmp_path / f"of-{setting}")
        (tmp_path / f"of-{setting}").write_text(text)
        (tmp_path / f"of-{setting}").chmod(0o600)
    files = [name for name in Settings.model_fields if name.endswith("_file")]
    assert given.keys() >= set(files), "each setting of a file has a planted one"
    client = authority.files("client")
    for variable, path in (
        (CA_VARIABLE, authority.path),
        (CERTIFICATE_VARIABLE, client.certificate),
        (KEY_VARIABLE, client.key),
    ):
        monkeypatch.setenv(variable, str(path))
    with LocalCluster.create(tmp_path / "c", 1, settings=given) as cluster:
        cluster.wait_ready()
        assert Qlog(cluster).json("debug", "bundle", tmp_path / "b.tar.zst")["complete"]
    parts = parts_of(tmp_path / "b.tar.zst")
    settings = {one["name"]: one for one in json.loads(parts["nodes/1/settings.json"])}
    assert {settings[name]["value"] for name in files} == {"set"}
    everything = "".join(parts.values())
    for name in files:
        for word in Path(str(given[name])).read_text().split():
            assert len(word) < 10 or word not in everything, name
        assert str(given[name]) not in everything
    assert str(client.key) not in everything


@pytest.mark.long
def test_a_bundle_without_its_extra_or_a_node_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with LocalCluster.create(tmp_path / "c", 2, replication="sync_master") as cluster:
        qlog, slave = Qlog(cluster), 3 - cluster.leader_id()
        cluster.kill(slave)
        told = qlog("debug", "bundle", code=1)
        assert "zstandard is not installed" in told.stderr
        (file,) = tmp_path.glob("quorumlog-*.tar.gz")
        parts = parts_of(file)
    assert [one["what"] for one in json.loads(parts["missing.json"])] == [f"nodes/{slave}"]
    assert json.loads(parts[f"nodes/{3 - slave}/tail.json"])["mode"]
