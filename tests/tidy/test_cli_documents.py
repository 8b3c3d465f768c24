"""Every command of `qlog` has help, and a planted one without is found. What is generated is
current: docs/cli.md from the commands, docs/rights.md from the needs of calls, the code of messages
from proto/."""

import click
import pytest

from deploy.generate_pb import is_current
from node.users import reference
from qlog import COMMANDS, main
from qlog.reference import page
from tests.tidy import checks, repository


def test_every_command_and_option_has_help() -> None:
    findings = [f for n, c in checks.commands(main) for f in checks.undescribed(n, c)]
    assert not findings, "\n".join(["", *map(str, findings)])


def test_summaries_of_lazy_commands_are_their_short_help() -> None:
    summaries = {name: command.summary for name, command in COMMANDS.items()}
    assert summaries == {n: c.load().get_short_help_str(100) for n, c in COMMANDS.items()}


@pytest.mark.parametrize(
    ("path", "definitions"),
    [
        ("qlog", "A broker group is / is acked when"),
        ("qlog cluster list", "in_tps is / space the share / activated whether"),
        ("qlog cluster status", "an entry is / A term is / commit_index is on / standing is full"),
        ("qlog delay status", "A level is / below floor_offset are"),
        ("qlog dlq", "A dead letter is"),
        ("qlog group", "A consumer group shares / lag_count is"),
        ("qlog ha promote", "An epoch is"),
        ("qlog ha status", "An epoch is / copies is on / A log position is"),
        ("qlog message trace", "half (sent"),
        ("qlog store", "a consume queue says / the key index where / is a ledger"),
    ],
)
def test_the_help_says_what_its_own_words_mean(path: str, definitions: str) -> None:
    text = " ".join((dict(checks.commands(main))[path].help or "").split())
    assert [words for words in definitions.split(" / ") if words not in text] == []


def planted() -> click.Group:
    """Make a command line with one good command, one without help, one with a bare option."""
    group = click.Group("qlog", help="The top.")
    group.add_command(click.Command("good", help="Do good."))
    group.add_command(click.Command("mute"))
    inner = click.Group("inner", help="More.")
    inner.add_command(click.Command("odd", help="Odd.", params=[click.Option(["--x"])]))
    group.add_command(inner)
    return group


def test_missing_help_is_found() -> None:
    findings = [f for n, c in checks.commands(planted()) for f in checks.undescribed(n, c)]
    assert [(f.path, f.detail) for f in findings] == [
        ("qlog inner odd", "--x has no help text"),
        ("qlog mute", "the command has no help text"),
    ]


def test_the_page_is_current() -> None:
    assert repository.text("docs/cli.md") == page(), "run: python -m qlog.reference > docs/cli.md"


def test_the_page_of_rights_is_current() -> None:
    page = reference.page()
    assert repository.text("docs/rights.md") == page, (
        "run: python -m node.users.reference > docs/rights.md"
    )


def test_options_of_many_commands_are_told_once() -> None:
    text = page()
    assert text.count("How to print it; wide folds no table.") == 1
    assert text.count("Show this message and exit.") == 1
    assert "\nAlso: --server, --output\n" in text


def test_generated_code_is_current() -> None:
    """`python -m deploy.generate_pb` would change nothing."""
    assert is_current(), "run python -m deploy.generate_pb and commit quorumlog/pb"
