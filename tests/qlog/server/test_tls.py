"""`qlog tls dev`, and TLS files that `qlog config check` and `qlog serve` refuse alike."""

import json
import os
import shlex
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from cryptography.hazmat.primitives import serialization

from node.runtime.fail_stop import EXIT_BAD_CONFIG
from qlog import main
from qlog.connection import CA_VARIABLE, CERTIFICATE_VARIABLE, KEY_VARIABLE
from qlog.server.authority import Authority
from quorumlog.command_errors import ExitCode
from tests.node.peers.certificates import new_year
from tests.node.processes import SingleNode


def run(*words: str | Path, environment: dict[str, str] | None = None) -> Result:
    """Run `qlog`."""
    return CliRunner().invoke(main, [*map(str, words)], env=environment, prog_name="qlog")


def test_made_files_serve_a_node_and_its_clients(tmp_path: Path) -> None:
    made = run("tls", "dev", tmp_path / "certs", "--host", "node1.example", "-o", "json")
    given = json.loads(made.stdout)
    keys = [tmp_path / "certs" / f"{name}.key" for name in ("server", "client")]
    assert [key.stat().st_mode & 0o777 for key in keys] == [0o600, 0o600]
    assert given["hosts"] == ["127.0.0.1", "localhost", "node1.example"]
    again = run("tls", "dev", tmp_path / "certs")
    assert again.exit_code == 3
    assert "has ca.pem, server.pem, server.key, client.pem, client.key already" in again.stderr
    text = run("tls", "dev", tmp_path / "o'ther").stdout
    settings, _, rest = text.partition("# or three nodes on this machine:\n")
    start, _, exports = rest.partition("# into the shell of qlog:\n")
    assert tomllib.loads(settings).keys() == given["settings"].keys()
    environment = dict(line.split("=") for line in shlex.split(exports) if "=" in line)
    assert environment.keys() == given["environment"].keys()
    local = ["--dir", str(tmp_path / "local")]
    try:
        assert max(map(len, text.replace(str(tmp_path), "").splitlines())) <= 80
        command = shlex.split(start.replace("\\\n", ""))
        started = run(*command[1:], *local, "--nodes", "1", "-o", "json")
        assert started.exit_code == 0, started.stderr
        address = json.loads(started.stdout)[0]["address"]
        for host in ("127.0.0.1", "localhost"):
            at = f"{host}:{address.rpartition(':')[2]}"
            shown = run("topic", "list", "-s", at, environment=environment)
            assert shown.exit_code == 0, shown.stderr
    finally:
        run("local", "stop", *local)


@pytest.mark.parametrize(
    "host",
    [
        "",
        "a b",
        "x\ny",
        "node1:8081",
        "[::1]",
        "a" * 64,
        "10.0.0.0/8",
        "10.0.0.256",
        "-x.y",
        "é.example",
    ],
)
def test_a_host_that_no_certificate_can_name_is_refused(tmp_path: Path, host: str) -> None:
    refused = run("tls", "dev", tmp_path / "certs", "--host", host)
    assert refused.exit_code == ExitCode.USAGE
    assert f"{host!r} is neither a host name nor an IP address" in refused.stderr
    assert not (tmp_path / "certs").exists()


FAULTS = {
    "passphrase": ("tls_key_file", "has a passphrase, which is never asked for", "openssl pkey"),
    "other key": ("tls_key_file", "the key is of another certificate", "made with"),
    "empty key": ("tls_key_file", "it is empty", "the private key into it"),
    "no key": ("tls_key_file", "no private key in PEM can be read", "BEGIN PRIVATE KEY"),
    "half a CA": ("tls_ca_file", "no certificate in PEM", "BEGIN CERTIFICATE"),
    "directory": ("tls_ca_file", "it is a directory, and no file", "name a file"),
    "FIFO": ("tls_ca_file", "it is a FIFO, and no file", "name a file"),
    "missing": ("tls_ca_file", "there is no such file", "correct the path"),
    "swapped": ("holds PRIVATE KEY, and a cert", "holds CERTIFICATE, and a priv", "be swapped"),
}
CLIENT_CAUSES = {
    "directory": "it is a directory, and no file",
    "FIFO": "it is a FIFO, and no file",
    "empty": "it is empty",
    "missing": "there is no such file",
    "swapped": "it holds PRIVATE KEY, and a certificate belongs here",
    "no PEM": "no certificate in PEM can be read",
}


@pytest.mark.parametrize("fault", CLIENT_CAUSES)
def test_a_client_refuses_a_file_by_its_kind_with_the_code_of_wrong_usage(
    tmp_path: Path, fault: str
) -> None:
    own, file = Authority(tmp_path).files("me", ()), tmp_path / "file"
    if fault == "directory":
        file.mkdir()
    elif fault == "FIFO":
        os.mkfifo(file)
    elif fault != "missing":
        file.write_bytes({"empty": b"", "swapped": own.key.read_bytes()}.get(fault, b"x"))
    for variables in ([CA_VARIABLE], [CA_VARIABLE, CERTIFICATE_VARIABLE, KEY_VARIABLE]):
        environment = dict(zip(variables, map(str, (own.ca, file, own.key)), strict=False))
        environment[variables[-2] if variables[1:] else CA_VARIABLE] = str(file)
        refused = run("topic", "list", "-s", "127.0.0.1:1", environment=environment)
        assert refused.exit_code == ExitCode.USAGE, refused.stderr
        what, why, _ = refused.stderr.splitlines()
        assert what == f"error: TLS cannot use {file}"
        assert why == f"  why: {CLIENT_CAUSES[fault]} (code client.tls_file)"
    assert "exit_code  2" in run("explain", "client.tls_file").stdout


@pytest.mark.parametrize("command", ["config check", "serve"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_file_that_cannot_be_used_is_refused_by_name(
    tmp_path: Path, command: str, fault: str
) -> None:
    authority = Authority(tmp_path)
    own, other = authority.files("node"), authority.files("other")
    key = serialization.load_pem_private_key(own.key.read_bytes(), None)
    if fault == "passphrase":
        encryption = serialization.BestAvailableEncryption(b"secret")
        form = serialization.PrivateFormat.PKCS8
        own.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, encryption))
    elif fault == "other key":
        own.key.write_bytes(other.key.read_bytes())
    elif fault == "half a CA":
        authority.path.write_bytes(authority.path.read_bytes()[:200])
    elif fault in ("empty key", "no key"):
        own.key.write_bytes(b"" if fault == "empty key" else b"text")
    elif fault == "FIFO":
        os.mkfifo(tmp_path / "FIFO")
    elif fault == "swapped":
        own = own._replace(certificate=own.key, key=own.certificate)
    flags = {
        "--directory": tmp_path / "data",
        "--tls-certificate-file": own.certificate,
        "--tls-key-file": own.key,
        "--tls-ca-file": {
            "directory": tmp_path,
            "FIFO": tmp_path / "FIFO",
            "missing": tmp_path / "none",
        }.get(fault, authority.path),
    }
    words = [word for flag in flags.items() for word in flag]
    refused = run(*command.split(), "--node-id", "1", *words)
    assert refused.exit_code == (EXIT_BAD_CONFIG if command == "serve" else 1)
    for part in FAULTS[fault]:
        assert part in refused.output
    assert "_ssl.c" not in refused.output or fault == "no key"
    assert not (tmp_path / "data").exists()


DATES = {"ended at": (2000, 2001), "begins at": (2098, 2099)}


@pytest.mark.parametrize("words", DATES)
def test_check_warns_of_dates_in_the_words_of_the_node(tmp_path: Path, words: str) -> None:
    begins, ends = map(new_year, DATES[words])
    files = Authority(tmp_path, ends=new_year(2100)).files("node", begins=begins, ends=ends)
    flags = {"tls_certificate_file": str(files.certificate), "tls_key_file": str(files.key)}
    options = [f"--{name.replace('_', '-')}={value}" for name, value in flags.items()]
    fixed = ["--node-id=1", f"--directory={tmp_path / 'c'}", "-o", "json"]
    checked = run("config", "check", *fixed, *options)
    assert checked.exit_code == 0
    (row,) = json.loads(checked.stdout)
    assert (row["severity"], row["key"]) == ("warning", "tls_certificate_file")
    assert row["what"].startswith(f"the certificate {words} ")
    said = row["what"].replace("certificate", "certificate in tls_certificate_file", 1)
    if words == "ended at":  # One start is enough: the words have one source.
        with SingleNode(tmp_path / "n", **flags) as node:
            assert f"{said}; {row['suggestion']}" in node.log_path.read_text()
