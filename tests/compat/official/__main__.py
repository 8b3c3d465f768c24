"""Runs the official clients while a leader is killed, and records what became of their messages.

python -m tests.compat.official --count 2000 --record    all of them, into the record
python -m tests.compat.official --client Go              one language, nothing recorded
"""

import argparse
import os
import tempfile
from pathlib import Path

from deploy.cache import make
from deploy.local import LocalCluster
from tests.compat.official import records
from tests.compat.official.clients import pinned
from tests.compat.official.run import run

DEFAULT_COUNT = 200


def main() -> None:
    """Run what was asked for; print an account for each client."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=DEFAULT_COUNT, help="messages of each kind")
    parser.add_argument("--client", default="", help="only those whose name begins so")
    parser.add_argument("--record", action="store_true", help="write the record")
    parser.add_argument("--keep", type=Path, help="where logs and events are left")
    given = parser.parse_args()
    chosen = [client for client in pinned() if client.name.startswith(given.client)]
    for client in chosen:
        make(client.part)
    broken: list[str] = []
    with tempfile.TemporaryDirectory() as scratch:
        home = given.keep or Path(scratch)
        for client in chosen:  # Each has a cluster of its own: nobody's messages slow another.
            own = home / client.name.replace(" ", "-")
            settings = {"file_size_bytes": "64MiB", **client.node_settings}
            with LocalCluster.create(own / "c", settings=settings) as cluster:
                account, load = run(client, cluster, own, given.count), os.getloadavg()[0]
            print(client.name, account, f"load {load:.1f}", flush=True)
            if (account.lost, account.leaked, account.out_of_order, account.early) != (0, 0, 0, 0):
                broken.append(f"{client.name}: lost, leaked, out of order or early")
            if account.pause_ms > client.pause_ms_max:
                broken.append(f"{client.name}: a pause above {client.pause_ms_max} ms")
            if given.record:
                records.write(client, account, count=given.count, load=load)
    if broken:
        raise SystemExit("\n".join(broken))


if __name__ == "__main__":
    main()
