"""Secrets and certificates of a process: what counts from its start on."""

from pathlib import Path

import pytest

from node.config.load import load
from node.renewed_files import RenewedFiles
from node.runtime.renewal import Renewals
from node.users.node_proofs import BadProofError, NodeProofs


def test_a_node_that_starts_while_secrets_change_knows_nodes_by_both(tmp_path: Path) -> None:
    first, second, file = b"0123456789abcdef", b"fedcba9876543210", tmp_path / "secret"
    file.write_bytes(first + b"\n" + second)
    file.chmod(0o600)
    given = {"node_id": "1", "directory": str(tmp_path), "secret_file": str(file)}
    proofs, other = (NodeProofs("c", number, lambda: 0) for number in (1, 2))
    RenewedFiles(load(None, given).settings, Renewals(), proofs)
    for secret in (first, second):
        other.secrets = [secret]
        assert proofs.signer("M", b"", dict(other.signed(b"", "M", b""))).node_id == 2
    other.secrets = [b"another secret of 16"]
    with pytest.raises(BadProofError):
        proofs.signer("M", b"", dict(other.signed(b"", "M", b"")))
