"""The result of the main job, printed as one screen or as one JSON object."""

from dataclasses import dataclass, field

import click


@dataclass(slots=True)
class MainJobSummary:
    """The findings. A field that was not set speaks against the run, not for it."""

    directory: str | None
    """Of the nodes; None once it is removed."""
    seed: int
    nodes: int
    verdict: str = "failed"
    files: int = 0
    lines: int = 0
    size_bytes: int = 0
    topics: int = 0
    queues: int = 0
    acked: int = 0
    read: int = 0
    lost: int = -1
    duplicates: int = -1
    files_equal: int = 0
    files_different: list[str] = field(default_factory=list)
    killed_node: int = 0
    killed_after: int = 0
    failover_ms: int = -1
    """Time from the SIGKILL to the first receipt of the next leader's term."""
    throughput_msgs_per_s: int = 0
    read_msgs_per_s: int = 0
    receipts_by_durability: dict[str, int] = field(default_factory=dict)
    duplicates_answered: int = 0
    """Messages that were sent again after the kill and found to be in the log already."""
    replicas_identical: bool = False
    replicas_equal: list[int] = field(default_factory=list)
    """Nodes from which, read alone, every file came back."""
    chain_digests: dict[str, str] = field(default_factory=dict)
    is_read: bool = False
    seconds: float = 0.0

    def settle(self, seconds: float) -> None:
        """Set the verdict, after all checks."""
        self.seconds = seconds
        good = (
            self.acked == self.read == self.lines > 0
            and self.lost == 0
            and self.duplicates == 0
            and self.files_equal == self.files
            and not self.files_different
            and 0 < self.killed_after < self.lines
            and self.failover_ms >= 0
            and self.replicas_identical
            and self.replicas_equal == list(range(1, self.nodes + 1))
        )
        self.verdict = "passed" if good else "failed"


def print_summary(summary: MainJobSummary, kept: str | None) -> None:
    """Print one screen; `kept` is the address of a cluster that continues to run."""
    s = summary
    receipts = ", ".join(f"{n:,} {level}" for level, n in s.receipts_by_durability.items())
    rows = [
        ("input", f"{s.lines:,} lines of {s.files:,} files, {s.size_bytes / 1e6:.1f} MB"),
        ("queues", f"{s.queues} queues of {s.topics} topics on {s.nodes} nodes"),
        ("acked", f"{s.acked:,} messages, {s.throughput_msgs_per_s:,}/s, the outage included"),
        ("receipts", receipts),
        ("killed", f"node {s.killed_node}, the leader, by SIGKILL after {s.killed_after:,} acks"),
        ("failover", f"{s.failover_ms:,} ms from the kill to the next leader's first ack"),
        ("sent again", f"{s.duplicates_answered:,} messages were in the log already"),
        ("read back", f"{s.read:,} messages, {s.read_msgs_per_s:,}/s, linearizable"),
        ("lost", f"{s.lost:,}, duplicates {s.duplicates:,}"),
        ("SHA-256", f"{s.files_equal:,} of {s.files:,} files came back byte for byte"),
        ("replicas", f"nodes {_names(s.replicas_equal)} gave every file back, read alone"),
        ("digests", "equal on all nodes" if s.replicas_identical else str(s.chain_digests)),
    ]
    click.echo("")
    for name, text in rows:
        click.echo(f"  {name:<11} {text}")
    for name in s.files_different[:5]:
        click.echo(f"  different   {name}")
    click.echo("")
    passed = s.verdict == "passed"
    click.secho(
        f"{s.verdict.upper()} in {s.seconds} s.", fg="green" if passed else "red", bold=True
    )
    if kept is None:
        if s.directory is not None:
            click.echo(f"The nodes are stopped; their data and logs are in {s.directory}.")
        click.echo("With --keep the nodes go on running, for you to try things.")
        return
    qlog = ".venv/bin/qlog"
    click.echo(f"The cluster runs in {s.directory}. Try:")
    click.echo(f"  export QUORUMLOG_SERVER={kept}")
    click.echo(f"  {qlog} cluster status")
    click.echo(f"  {qlog} consume json --from first --until end | head")
    click.echo(f"  {qlog} message query json --key json/decoder.py")
    click.echo(f"  {qlog} local kill --leader --dir {s.directory}; {qlog} cluster status")
    click.echo(f"  {qlog} local stop --dir {s.directory} && rm -r {s.directory}")


def _names(nodes: list[int]) -> str:
    return ", ".join(map(str, nodes)) or "none"
