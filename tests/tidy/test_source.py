"""The rules for Python source hold, and each of them finds a planted violation."""

from collections.abc import Callable, Iterator

import pytest

from tests.tidy import checks, repository
from tests.tidy.checks import Finding, Source

Check = Callable[[Source], Iterator[Finding]]


def test_the_repository_has_sources(all_sources: list[Source]) -> None:
    paths = {source.path for source in all_sources}
    assert {"store/__init__.py", "qlog/__init__.py", "tests/tidy/checks.py"} <= paths


@pytest.mark.parametrize("check", checks.SOURCE_CHECKS, ids=lambda check: check.__name__)
def test_sources_are_tidy(check: Check, all_sources: list[Source]) -> None:
    findings = [str(finding) for source in all_sources for finding in check(source)]
    assert not findings, "\n".join(["", *findings])


LUCK = """
import time
def look():
    return time.time()
{mark}
def {test}():
    assert look()
"""
TRY = """
def test_f():
    try:
        f()
    except OSError:
        {}
    {}
"""
ELIF = """
def test_f():
    if a:
        assert x
    elif b:
        with pytest.raises(OSError):
            f()
    else:
        {}
"""

PLANTED = [
    (checks.long_file, "store/a.py", "x = 1\n" * 801),
    (checks.flush_calls, "store/a.py", "self._mapping.flush()\n"),
    (checks.flush_calls, "store/a.py", "m.flush(0, 4096)\n"),
    (checks.flush_calls, "store/a.py", "executor.submit(file.map.flush)\n"),
    (checks.flush_calls, "store/a.py", "mmap.mmap(fd, 0).flush()\n"),
    (checks.lucky_tests, "tests/a.py", "import time\ntime.sleep(1)\n"),
    (checks.lucky_tests, "tests/a.py", "def f():\n    from time import sleep\n    sleep(1)\n"),
    (checks.lucky_tests, "tests/a.py", "import time\nx = Clock(time.monotonic)\n"),
    (checks.lucky_tests, "tests/a.py", "from datetime import datetime as d\nd.now(UTC)\n"),
    (checks.lucky_tests, "tests/a.py", "import random\nrandom.random()\n"),
    (checks.lucky_tests, "tests/a.py", "from random import Random\nRandom().random()\n"),
    (
        checks.lucky_tests,
        "tests/a.py",
        "import asyncio\nasyncio.run(asyncio.sleep(1))\n",
    ),
    (checks.lucky_tests, "tests/a/test_a.py", LUCK.format(test="test_b", mark="")),
    (checks.lucky_tests, "tests/a/test_a.py", LUCK.format(test="helper", mark="@pytest.fixture")),
    (checks.skipping_tests, "tests/a.py", "import pytest\npytest.skip('no')\n"),
    (checks.skipping_tests, "tests/a.py", "import pytest\n@pytest.mark.skipif(True)\ndef f(): ..."),
    (checks.skipping_tests, "tests/a.py", "from pytest import importorskip as i\ni('numpy')\n"),
    (checks.skipping_tests, "tests/a.py", "import pytest\nx = pytest.mark.xfail(strict=True)\n"),
    (checks.doubtful_tests, "tests/a.py", "def test_f():\n    if x:\n        assert y\n"),
    (checks.doubtful_tests, "tests/a.py", TRY.format("assert g()", "pass")),
    (checks.doubtful_tests, "tests/a.py", ELIF.format("pass")),
    (checks.ways_out, "node/framed/a.py", "self._transport.write(b'x')\n"),
    (checks.ways_out, "node/rocketmq/a.py", "found.transport.writelines(parts)\n"),
    (checks.global_randomness, "raft/a.py", "import random\nrandom.random()\n"),
    (checks.global_randomness, "store/a.py", "from random import choice\nchoice(x)\n"),
]

ALLOWED = [
    (checks.long_file, "store/a.py", "x = 1\n" * 800),
    (checks.flush_calls, "store/a.py", "self._commit_log.flush()\nself.flush()\nflush()\n"),
    (checks.flush_calls, "quorumlog/a.py", "sys.stdout.flush()\n"),
    (checks.lucky_tests, "tests/a.py", "import time\ntime.process_time()\nsleep = 1\n"),
    (checks.lucky_tests, "tests/a.py", "import random, asyncio\nrandom.Random(7).random()\n"),
    (
        checks.lucky_tests,
        "tests/a.py",
        "import asyncio\nasyncio.run(asyncio.sleep(0))\n",
    ),
    (checks.lucky_tests, "tests/patience.py", "import time\ntime.monotonic()\n"),
    (checks.lucky_tests, "store/a.py", "import time\ntime.monotonic()\n"),
    (checks.lucky_tests, "tests/a/test_a.py", LUCK.format(test="test_b", mark="@pytest.mark.long")),
    (
        checks.lucky_tests,
        "tests/a/test_a.py",
        "pytestmark = pytest.mark.long\n" + LUCK.format(test="test_b", mark=""),
    ),
    (checks.skipping_tests, "tests/missing.py", "import pytest\npytest.skip('no')\n"),
    (checks.skipping_tests, "tests/a.py", "import pytest\n@pytest.mark.long\ndef f(): ..."),
    (checks.doubtful_tests, "tests/a.py", "def test_f():\n    if x:\n        f()\n    assert y\n"),
    (checks.doubtful_tests, "tests/a.py", "def test_f():\n    check(x)\n"),
    (checks.doubtful_tests, "tests/a.py", TRY.format("pass", "assert g()")),
    (checks.doubtful_tests, "tests/a.py", ELIF.format("assert z")),
    (checks.global_randomness, "raft/a.py", "import random\nrandom.Random(7).random()\n"),
    (checks.global_randomness, "tests/a.py", "import random\nrandom.random()\n"),
]


@pytest.mark.parametrize(("check", "path", "text"), PLANTED)
def test_a_planted_violation_is_found(check: Check, path: str, text: str) -> None:
    findings = list(check(Source.parse(path, text)))
    assert len(findings) == 1
    assert findings[0].path == path
    assert str(findings[0]).startswith(f"{path}:{findings[0].line}: ")


@pytest.mark.parametrize(("check", "path", "text"), ALLOWED)
def test_allowed_code_is_not_found(check: Check, path: str, text: str) -> None:
    assert list(check(Source.parse(path, text))) == []


def test_every_check_has_a_planted_violation() -> None:
    assert {check for check, _, _ in PLANTED} == set(checks.SOURCE_CHECKS)


def test_tests_lie_in_the_folders_of_their_package() -> None:
    findings = [str(finding) for finding in checks.misplaced_tests(repository.files())]
    assert not findings, "\n".join(["", *findings])


def test_a_misplaced_test_is_found() -> None:
    files = [
        "store/ledger/ledger.py",
        "tests/store/ledger/test_ledger.py",
        "tests/store/test_store.py",
        "tests/store/crash/writer.py",
        "tests/store/crash/test_kill.py",
        "tests/store/ledger/mending/test_mend.py",
        "tests/cluster/test_kill.py",
        "store/store.py",
    ]
    misplaced = [(finding.path, finding.detail) for finding in checks.misplaced_tests(files)]
    assert misplaced == [
        ("tests/store/crash/test_kill.py", "there is no store/crash/"),
        ("tests/store/ledger/mending/test_mend.py", "there is no store/ledger/mending/"),
    ]
