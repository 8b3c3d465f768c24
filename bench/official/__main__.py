"""Compares sends to an echo with sends to three nodes: `python -m bench.official [--rounds N]`."""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from deploy.cache import make
from deploy.local import LocalCluster
from quorumlog.sync import connect

ROOT: Final = Path(__file__).resolve().parent.parent.parent
TOPIC: Final = "official"
THREADS: Final = (1, 16)


@contextmanager
def echo() -> Iterator[str]:
    """Run the echo server; yield its address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.official.echo"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.stdin.close()
        process.wait(10)
        process.stdout.close()


def send(endpoint: str, count: int, size_bytes: int, threads: int, home: str) -> dict[str, float]:
    """Send with the official client; return its figures."""
    command = [
        str(make("client-python") / "bin" / "python"),
        str(Path(__file__).parent / "sender.py"),
        endpoint,
        TOPIC,
    ]
    done = subprocess.run(
        [*command, str(count), str(size_bytes), str(threads)],
        env={**os.environ, "HOME": home},
        stdout=subprocess.PIPE,
        check=True,
        timeout=300,
    )
    result: dict[str, float] = json.loads(done.stdout)
    return result


def measure(rounds: int, count: int, size_bytes: int, directory: str) -> list[dict[str, Any]]:
    """Return one row for each number of threads: medians of both, and their ratio."""
    rows = []
    with LocalCluster.create(Path(directory) / "cluster") as cluster, echo() as address:
        # The client sorts the addresses of a route and takes the first one that answers; the sends
        # to another node have a hop more.
        first = min(cluster.node_ids, key=cluster.address)
        with connect(cluster.bootstrap) as client:
            client.admin.create_topic(TOPIC, queue_count=4)
            client.admin.transfer_leadership(first)
        nodes = cluster.address(first)
        for threads in THREADS:
            figures: dict[str, list[dict[str, float]]] = {"echo": [], "nodes": []}
            for _ in range(rounds):
                for name, endpoint in (("echo", address), ("nodes", nodes)):
                    figures[name].append(send(endpoint, count, size_bytes, threads, directory))
            medians = {
                name: {key: statistics.median(run[key] for run in runs) for key in runs[0]}
                for name, runs in figures.items()
            }
            ratio = medians["echo"]["per_s"] / medians["nodes"]["per_s"]
            rows.append({"threads": threads, **medians, "times_slower": ratio})
    return rows


def main() -> None:
    """Print a table, or with --json one document."""
    parser = argparse.ArgumentParser(prog="python -m bench.official", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--count", type=int, default=1_000, help="sends of one round")
    parser.add_argument("--size-bytes", type=int, default=1_024)
    parser.add_argument("--dir", help="where the nodes are; the system's temporary directory")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.dir) as directory:
        rows = measure(given.rounds, given.count, given.size_bytes, directory)
    out = sys.stdout
    if given.json:
        out.write(json.dumps(rows, indent=2) + "\n")
        return
    out.write("threads   echo/s   nodes/s   echo p50   nodes p50   times slower\n")
    for row in rows:
        first, second = row["echo"], row["nodes"]
        rates = f"{row['threads']:7}  {first['per_s']:7.0f}   {second['per_s']:7.0f}"
        times = f"   {first['p50_ms']:5.2f} ms   {second['p50_ms']:6.2f} ms"
        out.write(f"{rates}{times}   {row['times_slower']:.2f}\n")


if __name__ == "__main__":
    main()
