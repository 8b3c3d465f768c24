"""The file `node.json` in a data directory: the process that serves it, and its addresses.

For scripts that start nodes with port 0, and for tools that read the pages of a node with users.
Owns the file, which no node ever reads; `started` tells the process from a later one with its id.
"""

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from quorumlog.local_cluster import started_at

NODE_FILE: Final = "node.json"


def write_node_file(directory: Path, values: dict[str, object]) -> None:
    """Replace the file atomically."""
    temporary = directory / f"{NODE_FILE}.tmp"
    process = {"pid": os.getpid(), "started": started_at(os.getpid())}
    temporary.write_text(json.dumps({**process, **values}) + "\n", "utf-8")
    temporary.replace(directory / NODE_FILE)


def remove_node_file(directory: Path) -> None:
    """Remove the file, because the node does not listen any more."""
    with suppress(FileNotFoundError):
        (directory / NODE_FILE).unlink()
