"""Digits of other scripts, underscores and blanks are no number, wherever text becomes one."""

from collections.abc import Callable

import click
import pytest
from pydantic import ValidationError

from node.config.types import Address
from planning.commands.quantities import parse_size
from qlog import main
from qlog.parsed import parse_duration, parse_time
from quorumlog.errors import InvalidRequestError
from quorumlog.records.options import parse_position
from tests.tidy.checks import commands

TEXTS = ["٣", "３", "²", "1_0", " 3", "3 ", ""]
REFUSALS = (ValueError, ValidationError, InvalidRequestError)


def test_no_option_of_a_command_takes_them() -> None:
    kinds = (click.types.IntParamType, click.types.FloatParamType)
    every = [one for _, command in commands(main) for one in command.params]
    options = [one for one in every if isinstance(one.type, kinds)]
    assert len(options) > 50
    for option in options:
        is_float = isinstance(option.type, click.types.FloatParamType)
        for text in [*TEXTS, "1e400"] if is_float else TEXTS:
            with pytest.raises(click.BadParameter):
                option.type.convert(text, option, None)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize(
    "parse",
    [
        parse_position,
        lambda text: parse_position(f"@{text}"),
        parse_time,
        lambda text: parse_duration(f"{text}s"),
        lambda text: parse_size(text.replace(" ", "x")),  # Blanks may stand before a unit.
        lambda text: Address.parse(f"host:{text}"),
    ],
)
def test_no_parser_takes_them(parse: Callable[[str], object], text: str) -> None:
    with pytest.raises(REFUSALS):
        parse(text)
