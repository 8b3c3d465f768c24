"""`qlog check`: the state of a cluster as one line, for programs that watch many services.

Owns the output and the exit codes of monitoring plugins (Nagios, Icinga, Checkmk, Sensu), and the
limits of lag. What is wrong with nodes, `judgement` says.
"""

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import click

from qlog.cluster.judgement import WORST_LAST, Looks, Severity
from qlog.cluster.node_rows import groups_of, is_down, leader_of
from qlog.connection import (
    CALL_TIMEOUT_MS,
    CONNECT_TIMEOUT_MS,
    call_timeout_ms,
    connected,
    run,
    server_option,
)
from qlog.output import Format, output_option, print_record
from qlog.parsed import Parsed, integer, parse_duration
from quorumlog.command_errors import explain
from quorumlog.errors import ConnectTimeoutError, DeadlineError, UnavailableError
from quorumlog.foreign_text import shown

if TYPE_CHECKING:
    from quorumlog.admin.types import ClusterStatus, GroupInfo, GroupQueue
    from quorumlog.client import Client

_SUBJECTS: Final = ("leader", "lag", "disk", "damage")
_TEXT_COUNT_MAX: Final = 5
_GROUP_VALUE_COUNT_MAX: Final = 20
"""Bounds of the line, which such programs cut at some kB."""
_READS_AT_ONCE: Final = 16
_Result = TypeVar("_Result")


class Limit(NamedTuple):
    """How far a group may be behind, in messages or in milliseconds."""

    value: int
    is_time: bool


def parse_limit(text: str) -> Limit:
    """Return the limit of 10000 or of 5m. Raises ValueError."""
    if re.fullmatch(r"[0-9]+", text):
        return Limit(integer(text), is_time=False)
    try:
        return Limit(parse_duration(text), is_time=True)
    except ValueError:
        what = "is no limit; give messages, as 10000, or a time, as 500ms, 10s, 5m, 2h or 1d"
        raise ValueError(f"{text!r} {what}") from None


def _parse_subjects(text: str) -> tuple[str, ...]:
    subjects = tuple(text.split(","))
    if unknown := [one for one in subjects if one not in _SUBJECTS]:
        raise ValueError(f"{unknown[0]!r} is none of {', '.join(_SUBJECTS)}")
    return subjects


@dataclass(slots=True)
class Report:
    """What a check found, and what it measured."""

    findings: list[tuple[Severity, str]] = field(default_factory=list)
    values: list[str] = field(default_factory=list)
    """Performance data: 'label'=value;warning;critical;least;most."""

    def add(self, severity: Severity, text: str) -> None:
        """Report a finding."""
        self.findings.append((severity, text))

    def measure(self, label: str, value: str, *limits: object) -> None:
        """Report a value; `limits` are those of warning and critical, the least and the most."""
        label = re.sub(r"['=|\s]", "_", shown(label))
        texts = ("" if limit is None else str(limit) for limit in limits)
        self.values.append(";".join([f"'{label}'={value}", *texts]).rstrip(";"))

    @property
    def severity(self) -> Severity:
        """The worst of all findings."""
        return max((one for one, _ in self.findings), key=WORST_LAST.index, default=Severity.OK)

    def line(self) -> str:
        """Return the line, the worst findings first."""
        worst = sorted(self.findings, key=lambda finding: -WORST_LAST.index(finding[0]))
        texts = [text for _, text in worst[:_TEXT_COUNT_MAX]] or ["all is well"]
        if (more := len(worst) - _TEXT_COUNT_MAX) > 0:
            texts.append(f"{more} more")
        head = f"QUORUMLOG {self.severity.name} - {'; '.join(map(_plain, texts))}"
        return " | ".join([head, " ".join(self.values)] if self.values else [head])


def _plain(text: str) -> str:
    """Return a text as a part of the line, in which a bar would begin the performance data."""
    return " ".join(shown(text).split()).replace("|", "/")


class _Plugin(click.Command):
    """A command whose failures are a line and an exit code of plugins, too."""

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        return _told(lambda: super(_Plugin, self).make_context(*args, **extra))

    def invoke(self, ctx: click.Context) -> Any:
        return _told(lambda: super(_Plugin, self).invoke(ctx), ctx.params["output"])


def _told(work: Callable[[], _Result], output: Format = Format.TABLE) -> _Result:
    """Return what the work returns. Prints its error as a report, and raises Exit."""
    try:
        return work()
    except (click.exceptions.Exit, click.Abort, BrokenPipeError):
        raise
    except Exception as error:
        # Refused by each address is a service that is down; anything else was not looked at.
        told = explain(error)
        is_down = isinstance(error, UnavailableError) or told.code == "local.not_running"
        severity = Severity.CRITICAL if is_down else Severity.UNKNOWN
        report = Report([(severity, f"{told.what}: {told.why}; {told.do}")])
        raise click.exceptions.Exit(_shown(report, output)) from error


def _shown(report: Report, output: Format) -> Severity:
    """Print a report, and return its exit code."""
    state = report.severity
    if output is Format.TABLE:
        click.echo(report.line())
    else:
        rows = [{"severity": one.name, "text": text} for one, text in report.findings]
        record = {"state": state.name, "exit_code": int(state)}
        print_record(record | {"findings": rows, "values": report.values}, output)
    return state


@click.command(cls=_Plugin)
@click.option(
    "--lag-warning",
    type=Parsed("limit", parse_limit),
    multiple=True,
    metavar="LIMIT",
    help="A group that far behind is a warning: messages or a time; may be repeated.",
)
@click.option(
    "--lag-critical",
    type=Parsed("limit", parse_limit),
    multiple=True,
    metavar="LIMIT",
    help="A group that far behind is critical.",
)
@click.option(
    "--only",
    "subjects",
    type=Parsed("subjects", _parse_subjects),
    default=",".join(_SUBJECTS),
    metavar="SUBJECT,...",
    help=f"Look at these of {', '.join(_SUBJECTS)}.",
)
@server_option
@output_option
def check(
    lag_warning: Sequence[Limit],
    lag_critical: Sequence[Limit],
    subjects: tuple[str, ...],
    server: str | None,
    output: Format,
) -> int:
    """Say in one line whether all is well, for monitoring programs.

    \b
    leader  critical: a broker group without one, a node with another history;
            warning: a node that does not answer, drains or counts for nothing
    lag     as the limits say; a time is the age of the oldest unread message,
            and without a limit the lag is measured only
    disk    critical: a node refuses appends; warning: it is above a threshold
    damage  critical: acked messages may be lost, or a certificate has ended;
            warning: what nodes warn of, and errors in their logs for 15 minutes

    \b
    Keys of -o json:
      state, exit_code, findings, values
      findings: severity, text

    \b
    Examples:
      qlog check
      qlog check --lag-warning 10000 --lag-warning 5m --lag-critical 1h
      qlog check --only leader,disk --timeout 5s

    Ends with the codes of monitoring plugins, unlike all other commands: 0 OK, 1 WARNING,
    2 CRITICAL, also when no node can be reached, 3 UNKNOWN: it could not look within --timeout, or
    the command line makes no sense.
    """
    for number, unit in ((0, "messages"), (1, "a time")):
        least = [_least(limits, number) for limits in (lag_warning, lag_critical)]
        if least[0] and least[1] and float(least[0]) > float(least[1]):
            text = (
                f"as {unit}, a warning begins above critical; give the lower limit to the warning"
            )
            raise click.BadParameter(text, param_hint="'--lag-warning'")
    return _shown(run(_within_timeout(server, subjects, lag_warning, lag_critical)), output)


async def _within_timeout(server: str | None, *options: Any) -> Report:
    timeout_ms, loop = call_timeout_ms(CALL_TIMEOUT_MS), asyncio.get_running_loop()
    end_s = loop.time() + timeout_ms / 1000
    try:
        # Connecting ends within --timeout as well, and then says whether the nodes refused.
        async with connected(server, is_patient=False) as client, asyncio.timeout_at(end_s):
            return await _look(client, *options)
    except (TimeoutError, ConnectTimeoutError) as error:
        if isinstance(error, ConnectTimeoutError) and timeout_ms >= CONNECT_TIMEOUT_MS:
            raise
        raise DeadlineError(f"no answer within {timeout_ms} ms; raise --timeout") from None


async def _look(
    client: "Client", subjects: Sequence[str], warning: Sequence[Limit], critical: Sequence[Limit]
) -> Report:
    status, findings = await Looks(client).look(subjects)
    report = Report([(one.severity, one.text) for one in findings])
    _measure(status, subjects, report)
    if "lag" in subjects:
        if any(leader_of(status, group) for group in groups_of(status)):
            await _lag(client, report, warning, critical)
        else:
            report.add(Severity.UNKNOWN, "lag is not known: no node leads")
    return report


def _measure(status: "ClusterStatus", subjects: Sequence[str], report: Report) -> None:
    """Add the values of the nodes."""
    up, groups = [node for node in status.nodes if not is_down(node)], groups_of(status) or [""]
    if "leader" in subjects:
        led_count = sum(leader_of(status, group) is not None for group in groups)
        report.measure("nodes", str(len(up)), None, None, 0, len(status.nodes))
        report.measure("leaders", str(led_count), None, None, 0, len(groups))
    if "disk" in subjects:
        for node in up:
            value = f"{node.disk_used_ratio:.1%}"
            report.measure(f"disk_{node.node_id}", value, None, None, 0, 100)


async def _lag(
    client: "Client", report: Report, warning: Sequence[Limit], critical: Sequence[Limit]
) -> None:
    groups = sorted(await client.admin.list_groups(), key=lambda group: -group.lag_count)
    has_times = any(limit.is_time for limit in (*warning, *critical))
    ages_ms = await _ages_ms(client, groups) if has_times else {}
    for group in groups:
        values = {False: group.lag_count, True: ages_ms.get(group.group, 0)}
        for severity, limits in ((Severity.CRITICAL, critical), (Severity.WARNING, warning)):
            texts = [
                f"{values[True] / 1000:.0f} s behind"
                if limit.is_time
                else f"{values[False]} messages behind"
                for limit in limits
                if values[limit.is_time] >= limit.value
            ]
            if texts:
                report.add(severity, f"group {group.group} is {' and '.join(dict.fromkeys(texts))}")
                break
    for group in groups[:_GROUP_VALUE_COUNT_MAX]:
        report.measure(
            f"lag_{group.group}", str(group.lag_count), _least(warning, 0), _least(critical, 0), 0
        )
        if has_times:
            age_s = f"{ages_ms.get(group.group, 0) / 1000:.0f}s"
            report.measure(f"age_{group.group}", age_s, _least(warning, 1), _least(critical, 1), 0)


def _least(limits: Sequence[Limit], is_time: int) -> str | None:
    """Return the least limit of one kind, a time in seconds."""
    values = [limit.value for limit in limits if limit.is_time == is_time]
    return f"{min(values) / (1000 if is_time else 1):g}" if values else None


async def _ages_ms(client: "Client", groups: Sequence["GroupInfo"]) -> dict[str, int]:
    """Return the age of the oldest unread message of each group that is behind, in ms."""
    turns = asyncio.Semaphore(_READS_AT_ONCE)

    async def age_ms(queue: "GroupQueue") -> int:
        offset = max(queue.offset, queue.first_offset)
        async with turns:
            messages = await client.pull(
                queue.topic, queue.queue_id, offset, max_count=1, broker_group=queue.broker_group
            )
        now_ms = time.time_ns() // 1_000_000
        return max((now_ms - message.store_unix_ms for message in messages), default=0)

    ages: dict[str, int] = {}
    for group in groups:
        if not group.lag_count:
            continue
        queues = (await client.admin.describe_group(group.group)).queues
        found = await asyncio.gather(*(age_ms(queue) for queue in queues if queue.lag_count))
        ages[group.group] = max(found, default=0)
    return ages
