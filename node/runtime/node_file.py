"""The file `node.json` in a data directory: which process serves it, and where it listens.

For scripts that start nodes with port 0. Owns the file; it is advice, never read by a node.
"""

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

NODE_FILE: Final = "node.json"


def write_node_file(directory: Path, values: dict[str, object]) -> None:
    """Replace the file at once as a whole."""
    temporary = directory / f"{NODE_FILE}.tmp"
    temporary.write_text(json.dumps({"pid": os.getpid(), **values}) + "\n", "utf-8")
    temporary.replace(directory / NODE_FILE)


def remove_node_file(directory: Path) -> None:
    """The node listens no more."""
    with suppress(FileNotFoundError):
        (directory / NODE_FILE).unlink()
