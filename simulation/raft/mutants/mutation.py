"""Switching planted faults on, proving that they ran, and hunting them.

Owns how a mutant works: one fragment of one function is replaced in its source, the result is
compiled and put in the place of the old code object, so every reference to the function sees it. A
counter is compiled in front of the changed statement: a mutant whose line never ran proves nothing
and is reported as a defect. The list of mutants is in `mutants`.
"""

from __future__ import annotations
import __future__

import ast
import importlib
import inspect
import os
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FunctionType
from typing import NamedTuple

from simulation.raft.runner import EVENT_COUNT_DEFAULT, run_seed

MUTANT_VARIABLE = "QUORUMLOG_MUTANT"
"""Environment variable: the mutant that tests/raft/conftest.py switches on for a directed test."""
COUNT_VARIABLE = "QUORUMLOG_MUTANT_COUNT_FILE"
"""Environment variable: the file for the number of times the changed line ran in that test."""
_COUNTER = "_mutant_ran"
_ROOT = Path(__file__).resolve().parents[3]


class Mutant(NamedTuple):
    """One planted fault."""

    name: str
    rule: str
    """Broken rule: R.. or S.. of fault-matrix sections 4 and 5."""
    target: str
    """Mutated function: module:function or module:Class.method."""
    old: str
    """Fragment that occurs exactly once in the source of the target."""
    new: str
    killer: int | str
    """Number of seeds, from 1 on, within which the simulator must find it; or a pytest node."""


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
    found: object = importlib.import_module(module_name)
    for name in path.split("."):
        found = inspect.getattr_static(found, name)
    assert isinstance(found, FunctionType), f"{target} is no plain function"
    return found


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
    seconds: float


def hunt(mutant: Mutant) -> MutantKill:
    """Try to kill one mutant in the way that its entry names."""
    began = time.perf_counter()
    if isinstance(mutant.killer, int):
        killed_by, when, ran = _hunt_by_seeds(mutant, mutant.killer)
    else:
        killed_by, when, ran = _hunt_by_test(mutant, mutant.killer)
    return MutantKill(killed_by, when, ran, time.perf_counter() - began)


def _hunt_by_seeds(mutant: Mutant, count: int) -> tuple[str, str, int]:
    ran = 0
    for seed in range(1, count + 1):
        with switched_on(mutant) as switch:
            report = run_seed(seed, EVENT_COUNT_DEFAULT)
        ran += switch.ran
        # A seed that fails anyway proves nothing about the mutant.
        if not report.passed and run_seed(seed, EVENT_COUNT_DEFAULT).passed:
            return report.code, f"seed {seed} of {count}", ran
    return "", f"{count} seeds", ran


def run_tests(nodes: list[str], mutant: str) -> tuple[int, int]:
    """Run pytest nodes in a process of their own; return the exit code and the counter."""
    with tempfile.TemporaryDirectory() as directory:
        count_file = Path(directory) / "count"
        environment = dict(os.environ) | {MUTANT_VARIABLE: mutant, COUNT_VARIABLE: str(count_file)}
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *nodes]
        found = subprocess.run(
            command, cwd=_ROOT, env=environment, capture_output=True, text=True, check=False
        )
        ran = int(count_file.read_text()) if count_file.exists() else 0
        return found.returncode, ran


def _hunt_by_test(mutant: Mutant, node: str) -> tuple[str, str, int]:
    code, ran = run_tests([node], mutant.name)
    # 1 is "tests failed"; 2 and above are errors of pytest, such as a test that does not exist.
    if code > 1:
        return "", f"pytest ended with {code}: {node}", ran
    return (node.rpartition("::")[2] if code == 1 else ""), "directed", ran
