"""The kill matrix: which tests kill each fault, and which tests none of them needs.

Owns the document and the choice; must not know how faults are judged.
"""

import ast
from collections.abc import Iterator, Sequence
from typing import Any

from tests.mutate.hunting import Verdict
from tests.mutate.targets import Project


def matrix_of(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """Return the document: for each fault its name, its line, how it ended, how many tests ran its
    line, and all that kill it."""
    names = ("name", "line", "how", "run", "killers")
    rows = ((v.fault.name, v.fault.line, v.how, len(v.tests), v.killers) for v in verdicts)
    return {"faults": [dict(zip(names, row, strict=True)) for row in rows]}


def spare_tests(project: Project, verdicts: Sequence[Verdict]) -> list[tuple[str, int]]:
    """Return test functions and their lines, longest first, that may go together: each fault that
    a test kills has a killer that stays.

    Only of the folders of the tests of the faults (of `raft/` that is `tests/raft/`), and only
    those that ran a line of a fault."""
    folders = tuple({f"tests/{verdict.fault.path.partition('/')[0]}/" for verdict in verdicts})
    names = {_function(name) for verdict in verdicts for name in verdict.tests}
    lines: dict[str, int] = {}
    for file in {name.partition("::")[0] for name in names if name.startswith(folders)}:
        lines |= dict(_lines_of(file, project.source_of(file)))
    killers = [{_function(name) for name in verdict.killers} for verdict in verdicts]
    spare = []
    for name in sorted(names & lines.keys(), key=lambda name: (-lines[name], name)):
        killed = [row for row in killers if name in row]
        if all(len(row) > 1 for row in killed):
            spare.append((name, lines[name]))
            for row in killed:
                row.remove(name)
    return spare


def _function(node_id: str) -> str:
    return node_id.partition("[")[0]


def _lines_of(file: str, source: str) -> Iterator[tuple[str, int]]:
    """Yield the functions of a file with their lines, decorators included."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(part.lineno for part in node.decorator_list)])
            yield f"{file}::{node.name}", (node.end_lineno or first) - first + 1
