"""`qlog chaos`: break a local cluster in a chosen way, and check whether it kept its promises.

Owns the options and the printing. The attacks and the checkers are those of the fault-injection
suites (`chaos-tests/`), which are found beside `deploy`: in a source tree, and in the distribution
`quorumlog-server`.
"""

import asyncio
import functools
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from qlog import names
from qlog.output import Format, output_option, print_record
from qlog.progress import progress_bars
from qlog.server.local import cli_error, dir_option
from qlog.transport import transport
from quorumlog.command_errors import CliError, ExitCode

if TYPE_CHECKING:
    from chaos.local_attack import Attack
    from chaos.trial import TrialResult

_Command = TypeVar("_Command", bound=Callable[..., Any])
_STEPS = {
    "load": "sending and reading",
    "fault": "attacking",
    "heal": "waiting until all nodes are ready and level",
    "drain": "reading back and judging",
}
"""What is shown in each phase of a trial."""


@click.group()
def chaos() -> None:
    """Attack a local cluster while it works, and check every answer that clients got.

    For people who test their own applications: start `qlog local start` and your application, then
    attack. Each command sends and reads messages of its own on a topic of its own, breaks
    something, mends it, reads everything back from every replica, and judges the history: acked
    messages lost or doubled, stale reads, disorder, replicas that differ. It ends with 0 when all
    is well, and with 1 when something is not.
    """


def _options(command: _Command) -> _Command:
    for option in (
        output_option,
        click.option("--seed", type=int, help="For what is drawn; else a new one."),
        click.option(
            "--seconds",
            type=click.FloatRange(0, 3600),
            default=5.0,
            show_default=True,
            help="How long it lasts.",
        ),
        click.option(
            "--node",
            type=int,
            shell_complete=names.local_nodes,
            help="The node that is hit.  [default: the leader]",
        ),
        dir_option,
    ):
        command = option(command)
    return command


def _attack(
    name: str,
    *,
    directory: str | None,
    node: int | None,
    seconds: float,
    seed: int | None,
    output: Format,
) -> int:
    run, attack = _suite(name)
    from deploy.local import LocalCluster, LocalError, default_directory

    try:
        cluster = LocalCluster.open(directory or default_directory())
        cluster.wait_ready(node_ids=cluster.node_ids)
        if node is not None:
            cluster.node_directory(node)
    except LocalError as error:
        raise cli_error(error) from error
    if node is not None and node not in cluster.node_ids:
        node_ids = ", ".join(map(str, cluster.node_ids))
        raise CliError(
            f"there is no node {node}",
            f"the cluster has {node_ids}",
            "name one of these",
            ExitCode.NOT_FOUND,
        )
    seed = int.from_bytes(os.urandom(4), "big") if seed is None else seed
    ways = {"node": node, "seconds": seconds, "seed": seed, "transport": transport()}
    with progress_bars() as show, _warnings_kept() as warnings:
        phases = ["load"]
        show(_STEPS["load"], 0, None)

        def on_phase(phase: str) -> None:
            show(_STEPS[phases[-1]], 1, 1)
            show(_STEPS[phase], 0, None)
            phases.append(phase)

        result: TrialResult = asyncio.run(run(cluster, attack, on_phase=on_phase, **ways))
    record = _record(result) | {"client_warnings": warnings}
    if output is Format.TABLE and result.verdict == "passed":  # An attack brings them.
        del record["client_warnings"]
    print_record(record, output)
    return ExitCode.OK if result.verdict == "passed" else ExitCode.FINDINGS


@contextmanager
def _warnings_kept() -> Iterator[list[str]]:
    """Yield what the SDK logs meanwhile, once each, in place of lines on stderr."""
    texts: dict[str, None] = {}
    sdk, keeper = logging.getLogger("quorumlog"), logging.Handler(logging.WARNING)
    keeper.emit = lambda record: texts.setdefault(record.getMessage())  # type: ignore[method-assign]
    was_passed_on, kept = sdk.propagate, list[str]()
    sdk.addHandler(keeper)
    sdk.propagate = False
    try:
        yield kept
    finally:
        sdk.removeHandler(keeper)
        sdk.propagate = was_passed_on
        kept += texts


def _suite(name: str) -> "tuple[Callable[..., Any], Attack]":
    """Return the runner of attacks and one attack, from the source tree that this is run in."""
    import deploy

    root = Path(next(iter(deploy.__path__))).resolve().parent / "chaos-tests"
    if not (root / "chaos" / "local_attack.py").exists():
        raise CliError(
            "the fault-injection suites are not here",
            "they are in the source tree of QuorumLog and in the distribution quorumlog-server",
            "run qlog from a source tree: source deploy/venv",
        )
    if str(root) not in sys.path:
        sys.path.append(str(root))
    from chaos.local_attack import ATTACKS
    from chaos.local_attack import run as run_attack

    return run_attack, ATTACKS[name]


def _record(result: "TrialResult") -> dict[str, object]:
    return {
        "verdict": result.verdict,
        "why": result.why or None,
        "attack": result.scenario.name,
        "seed": result.seed,
        "transport": result.transport,
        "proofs": result.proofs,
        "acked_count": result.acked_count,
        "lost_count": result.lost_count,
        "anomaly_count": len(result.violations),
        "anomalies": result.violations,
        "checked_operation_count": result.operation_count,
        "operations": result.outcomes,
        "client_errors": result.errors,
        "failover_ms": [round(ms, 1) for ms in result.failovers_ms],
        "recovery_ms": None if result.recovery_ms is None else round(result.recovery_ms, 1),
        "took_s": round(result.took_s, 1),
    }


for _name, _help in {
    "kill": "End a node by SIGKILL, and start it again.\n\n\b\nExamples:\n  qlog chaos kill\n"
    "  qlog chaos kill --node 2 --seconds 30",
    "pause": "Stop a node from running (SIGSTOP), connections open, and let it go on.",
    "partition": "Lose all messages between a node and the others; clients still reach all of "
    "them.",
    "slow-link": "Let all messages between a node and the others be late by up to 300 ms, in any "
    "order.",
    "lossy-link": "Lose, double and delay a tenth each of all messages between all nodes.",
    "slow-disk": "Let every sync of a node take 200 ms longer; it is restarted before and after.",
}.items():
    chaos.command(_name, help=_help)(_options(functools.partial(_attack, _name)))
