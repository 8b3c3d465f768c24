"""Planted faults: how one is read, switched on, and hunted by a simulator or by a test.

Owns how a mutant works: one fragment of one function is replaced in its source, and the compiled
result replaces the code object, so every reference to the function sees it. A counter is compiled
in front of the changed statement: a mutant whose line never ran proves nothing and is reported as a
defect. The tables are `mutants.txt` in `simulation/raft` and in
`tests/node/replication/ha/core`. pytest loads this module as a plugin, which switches on the mutant
of a directed test.
"""

from __future__ import annotations
import __future__

import ast
import importlib
import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FunctionType
from typing import Final, NamedTuple

_MUTANT_VARIABLE: Final = "QUORUMLOG_MUTANT"
"""Environment variable: the mutant of a directed test, as JSON."""
_COUNT_VARIABLE: Final = "QUORUMLOG_MUTANT_COUNT_FILE"
"""Environment variable: the file for the number of times the changed line ran in that test."""
_COUNTER: Final = "_mutant_ran"
_ROOT: Final = Path(__file__).resolve().parents[1]
_ROW: Final = re.compile(
    r"""^([^#\n].*?) \| (\S+) \| (\S+)(?: \| (\d+))?
    (.+?)(?: |\n    )=>(?: (.+))?
(?:    (tests/\S+)\n)?""",
    re.MULTILINE,
)


class Mutant(NamedTuple):
    """One planted fault."""

    name: str
    rule: str
    target: str
    """Mutated function: module:function or module:Class.method."""
    old: str
    """Fragment that occurs exactly once in the source of the target."""
    new: str
    killer: int | str
    """Number of seeds, from 1 on, within which the simulator must find it; or a pytest node."""


def read(path: Path) -> tuple[Mutant, ...]:
    """Return the mutants of a table; its head describes a row. Raises ValueError."""
    text = path.read_text("utf-8")
    left = [line for line in _ROW.sub("", text).splitlines() if line and not line.startswith("#")]
    if left:
        raise ValueError(f"{path}: no row begins with {left[0]!r}")
    found = []
    for row in _ROW.findall(text):
        name, rule, target, seeds, old, new, test = (part.replace("\\n", "\n") for part in row)
        if bool(seeds) is bool(test):
            raise ValueError(f"{path}: {name!r} needs a number of seeds or a test")
        found.append(Mutant(name, rule, target, old, new, int(seeds) if seeds else test))
    return tuple(found)


class Switch:
    """A mutant that can be switched on and off."""

    def __init__(self, mutant: Mutant) -> None:
        self.mutant = mutant
        self.ran = 0
        self._function = _find(mutant.target)
        self._original = self._function.__code__
        self._mutated = _compile(self._function, mutant)

    def _count(self) -> None:
        self.ran += 1

    def on(self) -> None:
        self._function.__globals__[_COUNTER] = self._count
        self._function.__code__ = self._mutated

    def off(self) -> None:
        self._function.__code__ = self._original
        self._function.__globals__.pop(_COUNTER, None)


_ON: dict[str, Switch] = {}


def _find(target: str) -> FunctionType:
    module_name, _, path = target.partition(":")
    member: object = importlib.import_module(module_name)
    for name in path.split("."):
        member = inspect.getattr_static(member, name)
    assert isinstance(member, FunctionType), f"{target} is no plain function"
    return member


def _compile(function: FunctionType, mutant: Mutant) -> CodeType:
    """Return the code of `function` with the fragment replaced and the counter in front of it."""
    source = textwrap.dedent(inspect.getsource(function))
    count = source.count(mutant.old)
    if count != 1:
        raise ValueError(
            f"{mutant.name}: {mutant.old!r} occurs {count} times in {mutant.target}; "
            "the source has moved on, so must the mutant"
        )
    at = source.index(mutant.old)
    line = source.count("\n", 0, at) + 1
    tree = ast.parse(source[:at] + mutant.new + source[at + len(mutant.old) :])
    _insert_counter(tree, line)
    flags = __future__.annotations.compiler_flag
    module_code = compile(tree, f"<mutant {mutant.name}>", "exec", flags, dont_inherit=True)
    for constant in module_code.co_consts:
        if isinstance(constant, CodeType) and constant.co_name == function.__name__:
            assert constant.co_freevars == function.__code__.co_freevars, mutant.target
            return constant
    raise AssertionError(f"{mutant.name}: no code for {mutant.target}")


def _insert_counter(tree: ast.Module, line: int) -> None:
    """Put a call of the counter in front of the innermost statement that covers `line`."""
    best: tuple[list[ast.stmt], int] | None = None
    best_line = 0
    for node in ast.walk(tree):
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            if not isinstance(block, list) or node is tree:
                continue
            for at, statement in enumerate(block):
                covers = statement.lineno <= line <= (statement.end_lineno or statement.lineno)
                if covers and statement.lineno >= best_line:
                    best, best_line = (block, at), statement.lineno
    assert best is not None, f"no statement at line {line}"
    block, at = best
    call = ast.Expr(ast.Call(ast.Name(_COUNTER, ast.Load()), [], []))
    block.insert(at, ast.fix_missing_locations(ast.copy_location(call, block[at])))


@contextmanager
def switched_on(mutant: Mutant) -> Iterator[Switch]:
    """Run the body with the mutant on. Within this body, switching on again changes nothing."""
    if mutant.name in _ON:
        yield _ON[mutant.name]
        return
    switch = _ON[mutant.name] = Switch(mutant)
    switch.on()
    try:
        yield switch
    finally:
        switch.off()
        del _ON[mutant.name]


class MutantKill(NamedTuple):
    """Result of the hunt for one mutant."""

    killed_by: str
    """Code of the invariant or name of the test; empty if the mutant survived."""
    when: str
    ran: int


RunSeed = Callable[[int], str]
"""Runs a seed and returns the code of the violation, or an empty text."""


def hunt(mutant: Mutant, run_seed: RunSeed) -> MutantKill:
    """Try to kill one mutant in the way that its row names."""
    if isinstance(mutant.killer, str):
        return _hunt_by_test(mutant, mutant.killer)
    ran = 0
    for seed in range(1, mutant.killer + 1):
        with switched_on(mutant) as switch:
            code = run_seed(seed)
        ran += switch.ran
        # A seed that fails anyway proves nothing about the mutant.
        if code and not run_seed(seed):
            return MutantKill(code, f"seed {seed} of {mutant.killer}", ran)
    return MutantKill("", f"{mutant.killer} seeds", ran)


def _hunt_by_test(mutant: Mutant, node: str) -> MutantKill:
    code, ran = _run_tests([node], mutant)
    # 1 is "tests failed"; 2 and above are errors of pytest, such as a test that does not exist.
    if code > 1:
        return MutantKill("", f"pytest ended with {code}: {node}", ran)
    return MutantKill(node.rpartition("::")[2] if code == 1 else "", "directed", ran)


def _run_tests(nodes: Sequence[str], mutant: Mutant | None) -> tuple[int, int]:
    """Run pytest nodes in a process of their own; return the exit code and the counter."""
    with tempfile.TemporaryDirectory() as directory:
        count_file = Path(directory) / "count"
        named = {_MUTANT_VARIABLE: json.dumps(mutant), _COUNT_VARIABLE: str(count_file)}
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
        found = subprocess.run(
            [*command, "-p", "simulation.mutants", *nodes],
            cwd=_ROOT, env=dict(os.environ) | named, capture_output=True, text=True, check=False,
        )  # fmt: skip
        ran = int(count_file.read_text()) if count_file.exists() else 0
        return found.returncode, ran


def pytest_runtestloop() -> None:
    """Switch on the mutant of `_run_tests`: pytest has collected the tests."""
    mutant = json.loads(os.environ[_MUTANT_VARIABLE])
    if mutant is not None:
        _ON[mutant[0]] = Switch(Mutant(*mutant))
        _ON[mutant[0]].on()


def pytest_sessionfinish() -> None:
    """Write how often the changed line ran."""
    Path(os.environ[_COUNT_VARIABLE]).write_text(str(sum(switch.ran for switch in _ON.values())))


def run_table(
    mutants: Sequence[Mutant],
    run_seed: RunSeed,
    names: Sequence[str],
    *,
    directed: bool = True,
) -> int:
    """Hunt mutants, by default all, and print the table; return non-zero when one survives or
    never ran."""
    wanted = [mutant for mutant in mutants if not names or mutant.name in names]
    unknown = set(names) - {mutant.name for mutant in wanted}
    if unknown:
        print(f"no such mutant: {', '.join(sorted(unknown))}")
        return 2
    if not directed:
        wanted = [mutant for mutant in wanted if isinstance(mutant.killer, int)]
    nodes = sorted({mutant.killer for mutant in wanted if isinstance(mutant.killer, str)})
    if nodes and _run_tests(nodes, None)[0] != 0:
        print("the directed tests fail without any mutant: nothing can be concluded")
        return 1
    width = max((len(mutant.name) for mutant in wanted), default=0)
    print(f"{'mutant':{width}} {'rule':5} {'killed by':44} {'when':18} {'line ran':>9} {'s':>6}")
    survivors, idle = [], []
    for mutant in wanted:
        began = time.perf_counter()
        kill = hunt(mutant, run_seed)
        seconds = time.perf_counter() - began
        if not kill.killed_by:
            survivors.append(mutant.name)
        if not kill.ran:
            idle.append(mutant.name)
        print(
            f"{mutant.name:{width}} {mutant.rule:5} {kill.killed_by or 'SURVIVED':44} "
            f"{kill.when:18} {kill.ran:>9} {seconds:>6.1f}"
        )
    if idle:
        print(f"changed lines that never ran: {', '.join(idle)}")
    if survivors:
        print(f"survivors: {', '.join(survivors)}")
    print(f"{len(wanted) - len(survivors)} of {len(wanted)} mutants killed")
    return 1 if survivors or idle else 0
