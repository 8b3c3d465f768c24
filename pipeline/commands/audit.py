"""`audit` as a command: its options, its progress, and its result.

Must not know what is checked.
"""

import time

import click

from qlog.command_decorators import Printout, TableRows, printed
from qlog.output import Row
from qlog.progress import progress_bars
from quorumlog.command_errors import ExitCode

_FINDING_COLUMNS = (
    "replica", "kind", "file", "at", "field", "expected", "found", "log_position", "index",
)  # fmt: skip
_REPLICA_COLUMNS = (
    "replica", "verdict", "directory", "entry_count", "record_count", "end_log_position",
    "unchecked_bytes", "finding_count", "first_bad_index", "first_bad_file", "first_bad_byte",
)  # fmt: skip


@click.command()
@click.argument("directories", metavar="DIR...", nargs=-1, required=True)
@click.option("--master", metavar="URL", help="Of a Spark cluster.  [default: local[*]]")
@printed
def audit(directories: tuple[str, ...], master: str | None) -> Printout:
    """Check every record of every replica, and the replicas against each other.

    Name the store directories of the stopped nodes of one broker group, or backups of them. CRC and
    chain, consume queues against the log, gaps, and whether the replicas hold the same bytes up to
    where any of them knows the log as committed. Changes nothing.

    \b
    Verdicts:
      clean    every byte is as it must be
      behind   good, and shorter than what another one knows as committed
      derived  the log is good, its consume queues or index are not: rebuild them
      damaged  the log is not good, or differs from most of the others

    \b
    Keys of -o json:
      verdict, clean, size_bytes, took_s, mb_per_s, replicas, findings

    \b
    Examples:
      qlog pipeline audit node-1/data node-2/data node-3/data
      qlog pipeline audit /backup/* -o json | jq .findings

    Ends with 0 when all are clean, 1 when something was found, 3 to 7 when it could not be done.
    """
    from pipeline.session import check_available, spark_session

    check_available()
    from pipeline.jobs.audit import audit as run

    with progress_bars() as show, spark_session("audit", master) as spark:
        began = time.monotonic()
        report = run(spark, directories, show=show)
        seconds = time.monotonic() - began
    verdicts = sorted({one.verdict for one in report.replicas})
    replicas = [
        {name: getattr(one, name) for name in one.__dataclass_fields__} for one in report.replicas
    ]
    summary = {
        "verdict": ", ".join(verdicts),
        "clean": report.is_clean,
        "size_bytes": report.size_bytes,
        "took_s": round(seconds, 3),
        "mb_per_s": round(report.size_bytes / seconds / 1e6, 1),
    }
    findings = [one.row() for one in report.findings]
    shown = [{name: row[name] for name in _REPLICA_COLUMNS} for row in replicas]
    table: list[Row | TableRows] = [TableRows(_REPLICA_COLUMNS, shown)]
    table += [TableRows(_FINDING_COLUMNS, findings)] if findings else []
    return Printout(
        {**summary, "replicas": replicas, "findings": findings},
        table=[*table, summary],
        exit_code=ExitCode.OK if report.is_clean else ExitCode.FINDINGS,
    )
