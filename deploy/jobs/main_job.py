"""The main job: a three-node cluster, real input, a leader killed in the middle, every byte back.

Starts three nodes with sync flush, sends each line of a part of the Python standard library as a
message through the SDK, SIGKILLs the leader half-way and starts it again later, reads everything
back from the leader and then from each replica alone, and compares: SHA-256 of each file, every
message once, equal chain digests. Owns the sequence; the comparison is `audit`, the screen
`job_summary`, the input `stdlib_source`.
"""

import asyncio
import os
import time
from collections import deque
from random import Random
from typing import Final

import click

import quorumlog
from deploy.jobs.audit import LineAudit
from deploy.jobs.job_summary import (
    BeginStep,
    JobDirectory,
    MainJobSummary,
    Reached,
    job_progress,
    run_job_command,
)
from deploy.jobs.stdlib_source import (
    LINE_PROPERTY,
    PATH_PROPERTY,
    QUEUES_PER_TOPIC,
    QueueName,
    SourceFile,
    find_files,
    sample_of,
    standard_library,
)
from deploy.local import LocalCluster
from quorumlog.command_errors import CliError

NODE_COUNT: Final = 3
UNDECIDED_COUNT_MAX: Final = 20_000  # Sent messages whose receipts were not checked yet.
RESTART_AFTER: Final = 0.15  # The killed node is away for this share of the input.
CATCH_UP_S: Final = 60


class _Sender:
    """Sends all lines, checks every receipt, and kills the leader on the way."""

    def __init__(
        self,
        cluster: LocalCluster,
        client: quorumlog.Client,
        audit: LineAudit,
        summary: MainJobSummary,
    ) -> None:
        self._cluster, self._client = cluster, client
        self._audit, self._summary = audit, summary
        self._undecided: deque[tuple[int, int, quorumlog.Delivery]] = deque()
        self._undecided_count_max = min(UNDECIDED_COUNT_MAX, summary.lines // 20)
        self._acked_count = 0
        self._killed_term = 0
        self._killed_s = 0.0
        self._killed_node = 0
        self.last_index = -1

    async def run(self, files: list[SourceFile], kill_at: int, reached: Reached) -> None:
        """Send every line of `files`; the leader is killed once `kill_at` lines are acked."""
        restart_at = kill_at + int(self._summary.lines * RESTART_AFTER)
        began = time.monotonic()
        async with self._client.producer() as producer:
            for number, file in enumerate(files):
                await self._send_file(producer, number, file)
                reached(self._acked_count)
                if self._acked_count >= kill_at and not self._killed_node:
                    await self._kill()
                if self._acked_count >= restart_at and self._killed_node:
                    await self._restart()
            await self._settle(0)
        await self._restart()
        reached(self._acked_count)
        self._summary.acked = self._acked_count
        self._summary.throughput_msgs_per_s = round(self._acked_count / (time.monotonic() - began))

    async def _send_file(self, producer: quorumlog.Producer, number: int, file: SourceFile) -> None:
        key = file.name.replace(" ", "_")
        for line_number, line in enumerate(file.lines()):
            delivery = await producer.enqueue(
                file.topic,
                line,
                queue_id=file.queue_id,
                key=None if line_number else key,
                properties={PATH_PROPERTY: file.name, LINE_PROPERTY: str(line_number)},
            )
            self._undecided.append((number, line_number, delivery))
            if len(self._undecided) > self._undecided_count_max:
                await self._settle(self._undecided_count_max // 2)

    async def _settle(self, left_count: int) -> None:
        """Wait for the oldest receipts, until `left_count` are undecided."""
        receipts = self._summary.receipts_by_durability
        while len(self._undecided) > left_count:
            number, line_number, delivery = self._undecided.popleft()
            receipt = await delivery
            self._audit.on_acked(number, line_number)
            self._acked_count += 1
            level = receipt.durability.value
            receipts[level] = receipts.get(level, 0) + 1
            self._summary.duplicates_answered += receipt.is_duplicate
            self.last_index = max(self.last_index, receipt.index)
            if self._killed_term and receipt.term > self._killed_term:
                self._summary.failover_ms = round((time.monotonic() - self._killed_s) * 1000)
                self._killed_term = 0

    async def _kill(self) -> None:
        status = await self._client.admin.node_status()
        await asyncio.to_thread(self._cluster.kill, status.node_id)
        self._killed_s, self._killed_term = time.monotonic(), status.term
        self._killed_node = status.node_id
        self._summary.killed_node = status.node_id
        self._summary.killed_after = self._acked_count

    async def _restart(self) -> None:
        if self._killed_node > 0:
            await asyncio.to_thread(self._cluster.restart, self._killed_node)
            self._killed_node = -1


async def read_replica(
    client: quorumlog.Client,
    queues: list[QueueName],
    audit: LineAudit,
    reached: Reached,
    *,
    node_id: int | None,
    at_least_index: int,
) -> None:
    """Read every queue to its end, from the leader (linearizable) or from one replica alone."""
    consistency = "linearizable" if node_id is None else "local"
    for topic in sorted({topic for topic, _ in queues}):
        consumer = client.pull_consumer(
            topic,
            position="first",
            until="end",
            consistency=consistency,
            at_least_index=at_least_index,
            node_id=node_id,
        )
        async with consumer:
            async for batch in consumer.batches():
                for message in batch:
                    properties = message.properties
                    line_number = int(properties[LINE_PROPERTY])
                    audit.on_read(properties[PATH_PROPERTY], line_number, message.body)
                reached(audit.read_count)


async def compare_replicas(client: quorumlog.Client, summary: MainJobSummary) -> None:
    """Wait until all replicas have applied the leader's last entry, then compare digests there."""
    admin = client.admin
    target = (await admin.node_status()).commit_index
    deadline = time.monotonic() + CATCH_UP_S
    while True:
        status = await admin.cluster_status()
        applied = [getattr(node, "applied_index", -1) for node in status.nodes]
        if len(applied) == NODE_COUNT and min(applied) >= target:
            break
        if time.monotonic() > deadline:
            raise CliError(
                what=f"the replicas have applied up to {applied}, and not all up to {target}",
                why=f"they did not catch up within {CATCH_UP_S} s",
                do="run it again with --keep and look at qlog cluster status",
            )
        await asyncio.sleep(0.05)
    digests = [await admin.chain_digest(node.node_id, target) for node in status.nodes]
    summary.chain_digests = {
        str(node.node_id): f"{one.chain_crc:08x} at {one.index}, {one.end_log_position} bytes"
        for node, one in zip(status.nodes, digests, strict=True)
    }
    summary.replicas_identical = len({(d.index, d.term, d.chain_crc) for d in digests}) == 1


async def run_job(
    cluster: LocalCluster,
    files: list[SourceFile],
    seed: int,
    begin_step: BeginStep,
    summary: MainJobSummary,
) -> None:
    """Do the whole job against a running, empty cluster."""
    audit = LineAudit(files, begin_step("Read the files", len(files)))
    audit.describe(summary)
    queues = audit.queues
    async with quorumlog.connect(cluster.bootstrap) as client:
        for topic in sorted({topic for topic, _ in queues}):
            await client.admin.create_topic(topic, queue_count=QUEUES_PER_TOPIC)
        kill_at = int(summary.lines * Random(seed).uniform(0.35, 0.6))
        sender = _Sender(cluster, client, audit, summary)
        await sender.run(files, kill_at, begin_step("Send, with a SIGKILL", summary.lines))

        began = time.monotonic()
        reached = begin_step("Read back from the leader", summary.lines)
        await read_replica(
            client, queues, audit, reached, node_id=None, at_least_index=sender.last_index
        )
        summary.read_msgs_per_s = round(audit.read_count / (time.monotonic() - began))
        audit.judge_leader(summary)
        await compare_replicas(client, summary)
        for node_id in range(1, NODE_COUNT + 1):
            audit.begin_reading()
            reached = begin_step(f"Read back from node {node_id} alone", summary.lines)
            await read_replica(
                client, queues, audit, reached, node_id=node_id, at_least_index=sender.last_index
            )
            audit.judge_replica(summary, node_id)


def choose_files(source: str | None, *, is_whole: bool) -> list[SourceFile]:
    """Return every file below `source`, or a part of the standard library."""
    files = find_files(source or standard_library())
    return files if source or is_whole else sample_of(files)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object as the last line.")
@click.option("--dir", "directory", help="Where to put the nodes (default: a new temporary one).")
@click.option("--source", help="Directory of Python files, all sent (default: part of Python's).")
@click.option("--whole", is_flag=True, help="Send the whole standard library, three times as much.")
@click.option("--seed", type=int, help="Decides when the leader is killed (default: random).")
@click.option("--keep", is_flag=True, help="Leave the cluster running and say what to try next.")
@click.option("--setup", is_flag=True, help="Only make .venv, and say how a shell finds qlog.")
@click.option("--engine", is_flag=True, help="Run the job of one engine without a cluster.")
def main_job(
    as_json: bool,
    directory: str | None,
    source: str | None,
    whole: bool,
    seed: int | None,
    keep: bool,
    setup: bool,
    engine: bool,
) -> int:
    """Send real files through a three-node cluster, kill the leader, prove every byte is back.

    \b
    Examples:
      ./deploy/quickstart
      ./deploy/quickstart --json | tail -1
      ./deploy/quickstart --whole
      ./deploy/quickstart --keep --dir /dev/shm/quorumlog
      ./deploy/quickstart --engine --help     the options of the other job

    Exit code 0: every message came back once, from each replica. 1: not so. 3: the job could not
    be done.
    """
    if setup or engine:  # The script takes these two.
        wrong = "--setup has no other option" if setup else "--engine comes first"
        raise click.UsageError(wrong)
    seed = int.from_bytes(os.urandom(4), "big") if seed is None else seed
    files = choose_files(source, is_whole=whole)
    place = JobDirectory.make(directory)
    summary = MainJobSummary(directory=place.path, seed=seed, nodes=NODE_COUNT)
    began = time.monotonic()
    place.say(seed, is_kept=keep)
    cluster = LocalCluster.create(place.path, nodes=NODE_COUNT, flush="sync")
    with place.undone():
        try:
            with job_progress() as begin_step:
                reached = begin_step("Start three nodes", NODE_COUNT)
                cluster.start()
                cluster.wait_ready()
                reached(NODE_COUNT)
                asyncio.run(run_job(cluster, files, seed, begin_step, summary))
        finally:
            if not (keep and summary.is_read):
                cluster.stop()
    summary.settle(round(time.monotonic() - began, 1))
    return summary.end(place, as_json=as_json, kept=cluster.bootstrap if keep else None)


if __name__ == "__main__":
    run_job_command(main_job, "./deploy/quickstart")
