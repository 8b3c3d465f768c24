"""What a node imports at its start, and how: counted, since a clock would say it by luck only."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

SCRIPT: Final = """
import gc, json, sys
import uvloop
from qlog import main

def run(coroutine):
    # The node would begin its work here; everything is imported.
    coroutine.close()
    frozen, is_on = gc.get_freeze_count(), gc.isenabled()
    found = {"modules": [*sys.modules], "seen": seen, "frozen": frozen, "is_on": is_on}
    print(json.dumps(found))
    return 0

def on_collection(phase, info):
    frame = sys._getframe()
    while frame is not None and "importlib._bootstrap" not in frame.f_code.co_filename:
        frame = frame.f_back
    seen.append(phase == "start" and frame is not None)

seen = []
gc.callbacks.append(on_collection)
uvloop.run = run
main(["serve", "--node-id", "1", "--directory", sys.argv[1]], prog_name="qlog")
"""
LEFT_OUT: Final = {
    "lark": "needed with the first property filter",
    "node.broker.read.filter_language": "makes the parser of filters",
    "pydantic_settings": "settings are read without it",
    "lz4": "compression is of clients",
    "zstandard": "compression is of clients",
    "quorumlog.client": "a client",
    "qlog.connection": "asks a cluster",
    "simulation": "for tests",
    "node.config.reference": "writes a page",
    "deploy": "starts nodes",
    "bench": "measures nodes",
}


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What a node's process holds when its loop begins."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("QUORUMLOG_")}
    directory = tmp_path_factory.mktemp("node") / "data"
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(directory)],
        capture_output=True,
        check=True,
        env=environment,
        cwd=Path(__file__).parents[2],
    )
    return json.loads(done.stdout)


def test_a_start_imports_the_node_and_no_module_that_it_does_not_need(start: Any) -> None:
    modules = set(start["modules"])
    assert {"node.lifecycle", "node.replication.raft.assembly", "uvloop"} <= modules
    assert {name: LEFT_OUT[name] for name in modules & LEFT_OUT.keys()} == {}


def test_the_collector_runs_in_no_import_and_goes_on_without_its_objects(start: Any) -> None:
    assert start["seen"].count(True) == 0
    assert start["frozen"] > len(start["modules"])
    assert start["is_on"]
