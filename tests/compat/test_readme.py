"""The program of docs/start.md for the official client runs as it stands there."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from deploy.local import LocalCluster
from quorumlog.sync import connect
from tests import missing
from tests.patience import PATIENCE_S
from tests.qlog.running import Qlog
from tests.quorumlog.test_documentation import PROGRAMS


@pytest.mark.long
def test_the_program_with_the_official_client(cluster: LocalCluster, tmp_path: Path) -> None:
    program = PROGRAMS[1]
    assert "from rocketmq import" in program
    with connect(cluster.bootstrap) as client:
        client.admin.create_topic("orders")
    done = subprocess.run(
        [
            missing.installed("client-python") / "bin/python",
            "-c",
            program.replace("127.0.0.1:8081", cluster.address(2)),
        ],
        env={**os.environ, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    printed = re.search(r"^[0-9A-F]{34}$", done.stdout, re.MULTILINE)
    assert printed is not None
    found = Qlog(cluster).json("message", "get", printed[0], "--topic", "orders")
    assert found["body"] == "one pie"
