"""Listening ports beyond loopback: what has to be proven there, and what is only named."""

from pathlib import Path
from typing import Any

import pytest

from node.config.exposure import (
    ANYONE_MAY_BE_A_NODE,
    exposures,
    serves_rocketmq,
)
from node.config.types import Address, is_loopback
from qlog.server.authority import Authority
from tests.node.config.test_settings import problems, settings
from tests.node.users_files import user_settings

OUTSIDE = "0.0.0.0:40911"
HERE = ("127.0.0.1", "[::1]")


def keys_of_problems(**flags: Any) -> list[str]:
    return [problem.key for problem in problems(**flags)]


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    secret, node = tmp_path / "secret", Authority(tmp_path).files("node")
    secret.write_text("0123456789abcdef")
    secret.chmod(0o600)
    return {
        "secret_file": str(tmp_path / "secret"),
        "tls_certificate_file": str(node.certificate),
        "tls_key_file": str(node.key),
        "tls_ca_file": str(node.ca),
    }


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("", False),
        ("*", False),
        ("10.0.0.1", False),
        ("fe80::1", False),
        ("node1.example", False),
        ("localhost.example", False),
        ("127.0.0.1.example", False),
    ],
)
def test_loopback_addresses_are_recognised(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


@pytest.mark.parametrize("replication", ["raft", "sync_master", "slave"])
@pytest.mark.parametrize("listen", [OUTSIDE, "[::]:40911", "10.0.0.1:1", "node1.example:1", ":1"])
def test_a_peer_port_beyond_loopback_needs_a_proof(listen: str, replication: str) -> None:
    given = {"peer_listen": listen, "replication": replication, "copies": "1"}
    assert keys_of_problems(**given) == ["peer_listen + secret_file"]


def test_a_secret_or_the_certificates_of_one_ca_are_a_proof(files: dict[str, str]) -> None:
    assert settings(peer_listen=OUTSIDE, secret_file=files["secret_file"]).secret()
    tls = {name: path for name, path in files.items() if name != "secret_file"}
    assert settings(peer_listen=OUTSIDE, **tls).secret() == b""
    del tls["tls_ca_file"]  # Then who dials proves nothing.
    assert keys_of_problems(peer_listen=OUTSIDE, **tls) == ["peer_listen + secret_file"]


@pytest.mark.parametrize("word", ["true", "1", "yes", "on", "anyone", "refuse", ""])
def test_no_short_word_opens_the_port(word: str) -> None:
    keys = keys_of_problems(peer_listen=OUTSIDE, unproven_peers=word)
    assert "unproven_peers" in keys


def test_the_long_word_opens_it_and_it_is_named_all_the_same() -> None:
    configuration = settings(peer_listen=OUTSIDE, unproven_peers=ANYONE_MAY_BE_A_NODE)
    (port,) = exposures(configuration)
    assert port.setting == "peer_listen"
    assert "speak as a node" in str(port)
    assert "set secret_file" in port.remedy


def test_ports_of_this_machine_alone_need_nothing_and_are_not_named() -> None:
    assert exposures(settings()) == []
    assert exposures(settings(peer_listen="[::1]:1", listen="localhost:2")) == []


def test_open_ports_are_named_with_what_a_stranger_can_do(files: dict[str, str]) -> None:
    given = {"listen": "0.0.0.0:1", "advertise": "a:1", "http_listen": "0.0.0.0:2"}
    client, framed, http = exposures(settings(**given))
    ports = (client.setting, framed.setting, http.setting)
    assert ports == ("listen", "listen_framed", "http_listen")
    assert "administer in clear text" in client.how
    assert "set users = on or tls_client_auth" in client.remedy
    assert str(framed.address) == "0.0.0.0:1001"
    assert "append and commit offsets in clear text" in framed.how
    assert "listen_framed = off" in framed.remedy
    assert "change nothing" in http.how
    client, framed, _ = exposures(settings(**given, **files))
    assert "clear text" not in client.how + framed.how
    open_ports = exposures(settings(**given, **files, tls_client_auth="true"))
    assert [one.setting for one in open_ports] == ["http_listen"]
    open_ports = exposures(settings(**given, listen_framed="off"))
    assert [one.setting for one in open_ports] == ["listen", "http_listen"]
    (framed,) = exposures(settings(listen_framed="0.0.0.0:1"))
    assert framed.setting == "listen_framed"


def test_pages_with_users_are_open_only_to_who_overhears_them(
    tmp_path: Path, files: dict[str, str]
) -> None:
    given = {"http_listen": "0.0.0.0:2", "console": "full", **files, **user_settings(tmp_path)}
    ports = [one for one in exposures(settings(**given)) if one.setting != "peer_listen"]
    assert [one.setting for one in ports] == ["http_listen", "console_listen"]
    for port in ports:
        assert "a listener on the way may read the tokens of users, in clear text" in str(port)
    assert not exposures(settings(http_tls=True, **given))
    del given["tls_certificate_file"], given["tls_key_file"], given["tls_ca_file"]
    assert keys_of_problems(http_tls=True, **given) == ["http_tls"]


def test_a_remoting_port_that_also_takes_clear_text_is_named_with_it(
    files: dict[str, str],
) -> None:
    given = {**files, "rocketmq_listen": "0.0.0.0:3", "rocketmq_advertise": "a:3"}
    (both,) = exposures(settings(**given, rocketmq="on", rocketmq_tls="permissive"))
    assert (both.setting, str(both.address)) == ("rocketmq", "0.0.0.0:3")
    assert "in clear text" in both.how
    (port,) = exposures(settings(**given, rocketmq="on"))
    assert "clear text" not in port.how
    keys = keys_of_problems(**given, rocketmq_tls="permissive", tls_client_auth="true")
    assert keys == ["rocketmq_tls + tls_client_auth"]


@pytest.mark.parametrize(
    ("rocketmq", "proof", "here", "there"),
    [
        ("auto", None, True, False),
        ("auto", "users", True, True),
        ("auto", "prepare", True, False),
        ("auto", "certificates", True, True),
        ("on", None, True, True),
        ("on", "users", True, True),
        ("off", None, False, False),
        ("off", "users", False, False),
    ],
)
def test_rocketmq_is_served_to_this_machine_and_to_clients_with_a_proof(
    files: dict[str, str], tmp_path: Path, rocketmq: str, proof: str | None, here: bool, there: bool
) -> None:
    given: dict[str, str] = {"rocketmq": rocketmq}
    if proof in ("users", "prepare"):
        given |= user_settings(tmp_path, "on" if proof == "users" else proof)
    elif proof == "certificates":
        given |= files | {"tls_client_auth": "true"}
    for host in (*HERE, "0.0.0.0", "[::]", "10.0.0.1", "node1.example", ""):
        is_served = here if host in HERE else there
        address = Address.parse(f"{host}:10911")
        assert serves_rocketmq(settings(**given), address) is is_served, host
        for name in ("rocketmq_listen", "rocketmq_nameserver_listen"):
            flags = {**given, name: str(address), "rocketmq_advertise": "a:1"}
            if is_served:
                ports = [one for one in exposures(settings(**flags)) if one.setting == "rocketmq"]
                assert bool(ports) is (rocketmq == "on" and proof is None and host not in HERE)
            else:
                assert keys_of_problems(**flags) == [f"{name} + rocketmq"]


@pytest.mark.parametrize(
    "others",
    [{"join": "true"}, {"peers": "1=a:1/a:2,2=b:1/b:2"}, {"nameserver_servers": "a:1"}],
)
def test_nodes_with_users_know_each_other_by_a_secret(
    tmp_path: Path, others: dict[str, str]
) -> None:
    given = user_settings(tmp_path)
    assert settings(**given, **others).users == "on"
    del given["secret_file"]
    assert "users + secret_file" in keys_of_problems(**given, **others)
    assert settings(**given).users == "on", "alone"


def test_clients_whose_certificates_make_them_nodes_are_named(files: dict[str, str]) -> None:
    del files["secret_file"]
    (port,) = exposures(settings(peer_listen=OUTSIDE, **files, tls_client_auth="true"))
    assert (port.setting, port.who) == ("peer_listen", "a client with a certificate of tls_ca_file")
    assert exposures(settings(peer_listen=OUTSIDE, **files)) == []
