"""RocketMQ's own tool, mqadmin, against a cluster: each subcommand does what the page says.

test_answers.py compares what it reads with what RocketMQ's own broker answers.
"""

from pathlib import Path

import pytest

from tests import missing
from tests.compat import subcommands


@pytest.mark.long
def test_the_page_of_all_subcommands_is_what_a_run_says(capsys: pytest.CaptureFixture[str]) -> None:
    missing.installed("client-classic")
    assert subcommands.main() == 0, capsys.readouterr().err
    page = Path(__file__).parents[2] / "docs" / "rocketmq-tools.md"
    assert capsys.readouterr().out == page.read_text("utf-8")
