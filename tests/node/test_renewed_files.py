"""Secrets and certificates of a process: what counts from its start on."""

from pathlib import Path

from node.config.load import load
from node.renewed_files import RenewedFiles
from node.runtime.renewal import Renewals
from node.users.credentials import node_token
from node.users.guard import Guard


def test_a_node_that_starts_while_secrets_change_knows_nodes_by_both(tmp_path: Path) -> None:
    first, second, file = b"0123456789abcdef", b"fedcba9876543210", tmp_path / "secret"
    file.write_bytes(first + b"\n" + second)
    file.chmod(0o600)
    given = {"node_id": "1", "directory": str(tmp_path), "secret_file": str(file)}
    guard = Guard("on", lambda: 0)
    RenewedFiles(load(None, given).settings, Renewals(), guard)
    assert guard.by_token(node_token(first)).is_node
    assert guard.by_token(node_token(second)).is_node
    assert guard.by_token("").is_nobody
