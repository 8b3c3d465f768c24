"""Workers get shares that take as long, with long modules first and each module in one piece."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import order
from tests.order import LONG_S, in_shares
from tests.tidy.repository import ROOT


def made(name: str, count: int, *, is_slow: bool = False) -> list[Any]:
    """Tests of a module."""
    marker = object() if is_slow else None
    return [
        SimpleNamespace(nodeid=f"{name}::test_{n}", get_closest_marker=lambda _name: marker)
        for n in range(count)
    ]


def names(tests: list[Any]) -> list[str]:
    return [Path(test.nodeid.partition("::")[0]).name for test in tests]


def test_the_long_modules_exist() -> None:
    assert [name for name in LONG_S if not (ROOT / name).exists()] == []


def test_shares_are_as_long_and_begin_with_what_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "LONG_S", {"a.py": 9, "b.py": 5, "folder": 4})
    tests = [
        *made("a.py", 2),
        *made("b.py", 1),
        *made("folder/c.py", 1),
        *made("folder/inner/d.py", 1),
        *made("q.py", 6),
        *made("slow.py", 1, is_slow=True),
    ]
    found = in_shares(tests, 2)
    assert names(found[:6]) == ["a.py", "a.py", "slow.py", "q.py", "q.py", "q.py"]
    assert names(found[6:]) == ["b.py", "c.py", "d.py", "q.py", "q.py", "q.py"]


@pytest.mark.parametrize("worker_count", [1, 2, 3, 5, 50])
def test_no_test_is_lost_or_doubled(worker_count: int) -> None:
    tests = [*made("a.py", 7, is_slow=True), *made("b.py", 30), *made("c.py", 1, is_slow=True)]
    found = in_shares(tests, worker_count)
    assert sorted(test.nodeid for test in found) == sorted(test.nodeid for test in tests)


def test_a_module_too_large_for_a_share_is_cut_like_quick_ones() -> None:
    tests = [*made("large.py", 8, is_slow=True), *made("quick.py", 1)]
    assert names(in_shares(tests, 3)) == ["quick.py", *["large.py"] * 8]
