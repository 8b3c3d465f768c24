"""`qlog --transport` and its variable."""

import click
import pytest
from click.testing import CliRunner

from qlog.transport import TRANSPORT_VARIABLE, transport, transport_option
from quorumlog.errors import InvalidRequestError


@click.group()
@transport_option
def top(transport: str) -> None:
    pass


@top.command()
def show() -> None:
    click.echo(transport())


def shown(*arguments: str, variable: str | None = None) -> str:
    run = CliRunner().invoke(top, [*arguments, "show"], env={TRANSPORT_VARIABLE: variable})
    assert run.exit_code == 0, run.output
    return run.output.strip()


def test_the_option_counts_before_the_variable_and_that_before_the_default() -> None:
    assert shown() == "auto"
    assert shown(variable="grpc") == "grpc"
    assert shown("--transport", "framed", variable="grpc") == "framed"


def test_an_unknown_transport_is_refused_by_name() -> None:
    run = CliRunner().invoke(top, ["--transport", "pigeon", "show"])
    assert run.exit_code == 2
    assert "'pigeon' is not one of 'auto', 'framed', 'grpc'" in run.output


def test_commands_that_are_run_without_the_top_level_take_the_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(TRANSPORT_VARIABLE, "grpc")
    assert transport() == "grpc"
    monkeypatch.setenv(TRANSPORT_VARIABLE, "pigeon")
    with pytest.raises(InvalidRequestError, match="transport is 'pigeon'; use one of auto, framed"):
        transport()
