"""Files that people write: a byte order mark before the text is no part of it."""

import codecs
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import grpc
import pytest

from node.config.load import load
from node.config.settings import Settings
from node.config.users import read_users_key
from node.peers.security import tls
from qlog.cluster import config_files
from qlog.messages.produce_input import parse_json_lines, parse_lines
from qlog.messages.template import Template
from qlog.rocketmq.source import access_of
from qlog.server.authority import Authority
from quorumlog.cluster.tls import ClientTls
from quorumlog.user_files import read_keys


def _settings(file: Path | None, **given: Any) -> Settings:
    return load(file, {"node_id": "1", "directory": "d", **given}, {}).settings


def _name_server(file: Path) -> Any:
    return _settings(
        None, nameserver_listen="127.0.0.1:1", nameserver_secret_file=str(file)
    ).nameserver()


READERS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "settings": ('broker_group = "a"\r\n', lambda file: _settings(file).broker_group),
    "secret": (
        "0123456789abcdef\r\n",
        lambda file: _settings(None, secret_file=str(file)).secret(),
    ),
    "keys": ("first s1\r\nsecond s2\r\n", read_keys),
    "key of users": ("5" * 64 + "\r\n", lambda file: read_users_key(file, {})),
    "password": ("0123456789abcdef0123456789abcdef", _name_server),
    "keys of a source": ("first s1\n", lambda file: access_of(file, None)),
    "tables": ("{}", lambda file: config_files._read(file.parent)),
    "certificates": ("-----BEGIN", lambda file: tls._read(tls.TlsFiles(file, file), "key")),
    "lines": (
        "key=body",
        lambda file: list(
            parse_lines(
                [file.read_bytes()], first_line=1, name="f", template=Template.parse_input("%k=%s")
            )
        ),
    ),
    "lines of JSON": (
        json.dumps({"body": "b"}),
        lambda file: list(parse_json_lines([file.read_bytes()], first_line=1, name="f")),
    ),
}


@pytest.mark.parametrize(("text", "read"), READERS.values(), ids=READERS)
def test_a_mark_changes_nothing(text: str, read: Callable[[Path], Any], tmp_path: Path) -> None:
    file, contents = tmp_path / "topics.json", []
    for mark in (b"", codecs.BOM_UTF8):
        file.write_bytes(mark + text.encode())
        file.chmod(0o600)
        contents.append(read(file))
    assert contents[0] == contents[1]


def test_a_mark_before_certificates_of_a_client_does_not_hide_them(tmp_path: Path) -> None:
    ca = Authority(tmp_path).path
    text = ca.read_bytes()
    ca.write_bytes(codecs.BOM_UTF8 + text)
    with mock.patch.object(grpc, "ssl_channel_credentials") as given:
        ClientTls(ca=str(ca)).credentials()
    given.assert_called_once_with(text, None, None)
