"""The report of a run as one self-contained HTML file.

Owns the drawing of a time line: receipts and failed calls in slices of time, faults as bars, terms
and proofs as marks. Every scenario has one; those of failures are initially open.
"""

import html
from collections.abc import Sequence
from typing import Final

from chaos.recorder import Event, Recorder
from chaos.summary import CampaignSummary
from chaos.trial import TrialResult
from checkers.history import Kind
from raft.errors import Outcome

_WIDTH: Final = 1000
_HEIGHT: Final = 90
_SLICE_COUNT: Final = 250
_STYLE: Final = """
body{font:14px/1.45 system-ui,sans-serif;margin:2em auto;max-width:1080px;color:#1c2530}
h1{font-size:1.4em}table{border-collapse:collapse;margin:1em 0}td,th{padding:.2em .8em .2em 0;
text-align:left;vertical-align:top}td:first-child{color:#5a6b7b;white-space:nowrap}
details{border-top:1px solid #dde4ea;padding:.5em 0}summary{cursor:pointer}
.passed{color:#1a7f4b}.failed{color:#b3261e;font-weight:600}.skipped{color:#8a6d00}
svg{display:block;width:100%;height:auto;background:#f7f9fb;margin:.5em 0}
pre{white-space:pre-wrap;background:#f7f9fb;padding:.6em;overflow-x:auto;max-height:30em}
.legend span{margin-right:1.4em}
"""


def page(summary: CampaignSummary, results: Sequence[TrialResult]) -> str:
    """Return the whole document."""
    title = f"Faults injected into QuorumLog, mode {summary.mode}, seed {summary.seed}"
    rows = "".join(
        f"<tr><td>{html.escape(name)}</td><td>{html.escape(value)}</td></tr>"
        for name, value in summary.rows()
    )
    ordered = sorted(results, key=lambda result: result.verdict != "failed")
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{html.escape(title)}</title>"
        f"<style>{_STYLE}</style><h1>{html.escape(title)}</h1><table>{rows}</table>"
        "<p class=legend><span style='color:#3b7dd8'>&#9632; receipts</span>"
        "<span style='color:#d9534f'>&#9632; calls that failed or stay unknown</span>"
        "<span style='color:#e8a33d'>&#9632; faults</span>"
        "<span style='color:#6b4fa0'>| first receipt of a term</span>"
        "<span style='color:#1a7f4b'>| healing begins</span></p>"
        + "".join(map(_section, ordered))
        + "</html>\n"
    )


def _section(result: TrialResult) -> str:
    scenario = result.scenario
    faults = ", ".join(f"{kind} {count}" for kind, count in result.fault_counts.items())
    recovery = "" if result.recovery_ms is None else f", whole after {result.recovery_ms:,.0f} ms"
    failovers = "".join(f" {ms:,.0f}" for ms in result.failovers_ms)
    facts = (
        f"rows {' '.join(scenario.rows)}; faults: {faults or 'none'}; "
        f"{result.operation_count:,} operations, {result.acked_count:,} acked{recovery}"
        + (f"; failovers{failovers} ms" if failovers else "")
        + f"; {result.took_s:.1f} s; seed {result.seed}, transport {result.transport}"
    )
    why = f"<pre>{html.escape(result.why)}</pre>" if result.why else ""
    proofs = "".join(f"<li>{html.escape(proof)}</li>" for proof in result.proofs)
    line = _time_line(result.recorder) if result.recorder.operations else ""
    events = _event_list(result.recorder) if result.recorder.events else ""
    return (
        f"<details{' open' if result.verdict == 'failed' else ''}><summary>"
        f"<span class={result.verdict}>{result.verdict}</span> <b>{scenario.name}</b> "
        f"{html.escape(scenario.title)}</summary><p>{html.escape(facts)}</p>{why}{line}"
        f"<ul>{proofs}</ul>{events}</details>"
    )


def _time_line(recorder: Recorder) -> str:
    lo = recorder.began_ns
    hi = max(op.return_ns or op.invoke_ns for op in recorder.operations) + 1
    acks, failures = [0] * _SLICE_COUNT, [0] * _SLICE_COUNT

    def slice_of(at_ns: int) -> int:
        return min(_SLICE_COUNT - 1, max(0, (at_ns - lo) * _SLICE_COUNT // (hi - lo)))

    for op in recorder.operations:
        if op.outcome is Outcome.APPLIED:
            if op.kind in (Kind.APPEND, Kind.PUT) and op.return_ns is not None:
                acks[slice_of(op.return_ns)] += 1
        else:
            failures[slice_of(op.invoke_ns)] += 1
    x = _WIDTH / _SLICE_COUNT
    parts = [_bars(acks, x, "#3b7dd8"), _bars(failures, x, "#d9534f", log=True)]
    for event in recorder.events:
        left = (event.at_ns - lo) * _WIDTH / (hi - lo)
        parts.append(_drawn(event, left, lo, hi))
    seconds = (hi - lo) / 1e9
    marks = "".join(
        f"<text x='{second * _WIDTH / seconds:.1f}' y='{_HEIGHT + 24}' font-size=9 "
        f"fill='#5a6b7b'>{second} s</text>"
        for second in range(0, int(seconds) + 1, max(1, int(seconds) // 20 or 1))
    )
    return f"<svg viewBox='0 0 {_WIDTH} {_HEIGHT + 28}'>{''.join(parts)}{marks}</svg>"


def _bars(counts: list[int], width: float, colour: str, *, log: bool = False) -> str:
    highest = max(1, *counts)
    bars = []
    for at, count in enumerate(counts):
        if count:
            height = (_HEIGHT - 10) * (min(count, 20) / 60 if log else count / highest)
            bars.append(
                f"<rect x='{at * width:.1f}' y='{_HEIGHT - height:.1f}' width='{width:.1f}' "
                f"height='{height:.1f}' fill='{colour}' opacity='.75'/>"
            )
    return "".join(bars)


def _drawn(event: Event, left: float, lo: int, hi: int) -> str:
    said = html.escape(f"{(event.at_ns - lo) / 1e9:.2f} s {event.kind}: {event.text}")
    if event.kind == "fault":
        until = event.at_ns if event.until_ns is None else event.until_ns
        width = max(3.0, (until - event.at_ns) * _WIDTH / (hi - lo))
        return (
            f"<rect x='{left:.1f}' y='{_HEIGHT + 2}' width='{width:.1f}' height='10' "
            f"fill='#e8a33d' opacity='.7'><title>{said}</title></rect>"
        )
    colour = {"ack": "#6b4fa0", "phase": "#1a7f4b", "failure": "#b3261e"}.get(event.kind)
    if colour is None:
        return ""
    return (
        f"<line x1='{left:.1f}' x2='{left:.1f}' y1='0' y2='{_HEIGHT}' stroke='{colour}'>"
        f"<title>{said}</title></line>"
    )


def _event_list(recorder: Recorder) -> str:
    lines = "\n".join(
        f"{(event.at_ns - recorder.began_ns) / 1e9:9.3f} s  {event.kind:8} {event.text}"
        for event in sorted(recorder.events, key=lambda event: event.at_ns)
        if event.kind != "leader"
    )
    return f"<details><summary>events</summary><pre>{html.escape(lines)}</pre></details>"
