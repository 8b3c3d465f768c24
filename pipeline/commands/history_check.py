"""`history-check` as a command: its options, its progress, and its result.

Must not know the rules.
"""

from dataclasses import asdict

import click

from qlog.command_decorators import Printout, TableRows, printed
from qlog.progress import progress_bars
from quorumlog.command_errors import ExitCode


@click.command("history-check")
@click.argument("directories", metavar="DIR...", nargs=-1, required=True)
@click.option("--master", metavar="URL", help="Of a Spark cluster.  [default: local[*]]")
@printed
def history_check(directories: tuple[str, ...], master: str | None) -> Printout:
    """Judge saved histories of clients: what was lost, doubled, stale or out of order.

    A history is a directory with history.jsonl, and drains.jsonl and notes.jsonl if there are any,
    as the fault suites write them for each scenario that failed. Several are taken as one, from
    clients that share a clock. The rules are those of the suites; each queue is checked alone,
    which finds the same, so a history may be larger than one process can hold.

    \b
    Keys of -o json:
      verdict, operation_count, queue_count, violation_count, operation_counts,
      violations

    \b
    Examples:
      qlog pipeline history-check out/kill-leader
      qlog pipeline history-check client-*/ --master spark://spark:7077 -o json

    Ends with 0 when nothing is wrong, 1 when a rule is broken, 3 to 7 when it could not be done.
    """
    from pipeline.session import check_available, spark_session

    check_available()
    from pipeline.jobs.history_check import files_of
    from pipeline.jobs.history_check import history_check as run

    files_of(directories)  # A wrong one is found before Spark starts.
    with progress_bars() as show, spark_session("history-check", master) as spark:
        report = run(spark, directories, show=show)
    rows = [asdict(broken) for broken in report.violations]
    summary = {
        "verdict": f"{report.violation_count} violations" if rows else "a right log can have it",
        "operation_count": sum(report.operation_counts.values()),
        "queue_count": len(report.operation_counts),
        "violation_count": report.violation_count,
    }
    table = TableRows(("rule", "queue", "detail", "witnesses"), rows)
    return Printout(
        {**summary, "operation_counts": report.operation_counts, "violations": rows},
        table=[table, summary] if rows else [summary],
        exit_code=ExitCode.FINDINGS if rows else ExitCode.OK,
    )
