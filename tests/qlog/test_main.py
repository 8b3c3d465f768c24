"""The top level of the command line: exit codes, errors in three lines, lazy groups."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from qlog import COMMANDS, CliError, ExitCode, LazyGroup, main
from quorumlog.command_errors import report
from quorumlog.local_cluster import CAUSES
from quorumlog.version import __version__
from tests.tidy.repository import ROOT


class CodedError(Exception):
    """Like the errors of our layers: a code, an outcome, what to do after the last "; "."""

    code, retryable, outcome = "store.full", True, "not_applied"


FORM = click.Option(["-o"], expose_value=False)
FULL = CodedError("segment 3 needs 9 B; 5 are free; free it")


def run_command(body: Callable[[], Any]) -> Result:
    """Run `qlog act`, whose body is given."""
    group = LazyGroup("qlog", lazy={})
    group.add_command(click.Command("act", callback=body))
    return CliRunner().invoke(group, ["act"], prog_name="qlog")


def raising(error: BaseException) -> Callable[[], None]:
    """Make a body that raises."""

    def body() -> None:
        raise error

    return body


def test_version_and_help_need_no_command() -> None:
    assert CliRunner().invoke(main, ["--version"]).stdout == f"qlog, version {__version__}\n"
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    assert "Examples:" in result.stdout
    assert "Exit codes:" in result.stdout
    lists = re.findall(r"\n\n([A-Z]\w+(?: work)?):((?:\n  .+)+)", result.stdout)
    named = {title: re.findall(r"^  (\S+)", rows, re.MULTILINE) for title, rows in lists}
    daily = ["produce", "consume", "topic", "group", "message", "dlq", "delay", "transaction"]
    assert named.pop("Daily work") == daily
    del named["Options"]
    assert [*named] == ["Cluster", "Users", "Node", "RocketMQ", "Measure", "Help"]
    assert sorted([*daily, *chain(*named.values())]) == sorted(COMMANDS)


def test_a_list_of_commands_has_whole_sentences() -> None:
    for name in ("cluster", "ha", "local", "topic"):
        result = CliRunner().invoke(main, [name, "--help"], terminal_width=60)
        listed = result.stdout.partition("\nCommands:\n")[2]
        assert "..." not in listed
        assert listed.endswith((".\n", ".\n\n"))


def test_help_imports_no_command_and_no_server_code() -> None:
    program = (
        "import sys, qlog as c\n"
        "try: c.main(['--help'])\n"
        "except SystemExit: pass\n"
        "roots = {m.split('.')[0] for m in sys.modules}\n"
        "assert not roots & {'store', 'raft', 'node', 'bench', 'grpc', 'rich'}, roots\n"
        "assert 'qlog.server.store' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)


def test_clients_need_no_server_code_and_no_unix() -> None:
    """All of the SDK and of the commands that the distribution `quorumlog` has."""
    program = """if True:
        import importlib, pkgutil, sys
        blocked = "fcntl resource uvloop bench checkers deploy node pipeline planning raft store "
        blocked += "qlog.server qlog.rocketmq qlog.console quorumlog_server"
        sys.modules.update(dict.fromkeys(blocked.split()))
        import quorumlog.sync, qlog
        for package in (quorumlog, qlog):
            for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
                if not found.name.startswith(("qlog.server.", "qlog.rocketmq", "qlog.console")):
                    found.name in blocked or importlib.import_module(found.name)
        names = [name for name, lazy in qlog.COMMANDS.items() if not lazy.is_of_server]
        assert {"produce", "consume", "topic", "cluster", "explain", "nameserver"} <= set(names)
        qlog.main(sys.argv[1:])
    """
    command = [sys.executable, "-c", program]
    listed = subprocess.check_output([*command, "--help"], text=True)
    assert "\nNode:\n" not in listed
    assert "qlog store" not in listed
    stated = subprocess.check_output([*command, "local", "start", "--help"], text=True)
    assert "  Needs quorumlog-server, which is not installed.\n" in stated
    assert "\nWith quorumlog-server, which is not installed:\n  console, local, serve, " in listed
    command += ["local", "start"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.splitlines()) == (
        3,
        [
            "error: the server of QuorumLog is not installed, and this needs it",
            "  why: the package quorumlog has what clients need, quorumlog-server has the rest "
            "(code local.no_server)",
            "  do:  install the wheel of quorumlog-server: pip install quorumlog_server-*.whl",
        ],
    )


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (lambda: None, 0),
        (lambda: ExitCode.FINDINGS, 1),
        (lambda: ExitCode.FAILED, 3),
        (lambda: "text", 0),
        (lambda: click.get_current_context().exit(1), 1),
    ],
)
def test_the_result_of_a_command_is_the_exit_code(body: Callable[[], Any], code: int) -> None:
    assert run_command(body).exit_code == code


def test_lines_of_an_error_fit_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    why = f"{'first word ' * 9}/a{'/b' * 50}"
    error = CliError("it broke", why, "mend it", code="a.b", others=("second\n",))
    monkeypatch.setenv("COLUMNS", "50")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    report(error)
    assert capsys.readouterr().err.splitlines() == [
        "error: it broke",
        "  why: first word first word first word first word",
        "       first word first word first word first word",
        "       first word",
        f"       /a{'/b' * 50}",
        "       (code a.b)",
        "       second\\n",
        "  do:  mend it",
    ]


def test_wrong_usage_is_three_lines_and_code_2() -> None:
    result = CliRunner().invoke(main, ["--zzz"], prog_name="qlog")
    assert result.exit_code == 2
    assert result.stderr.splitlines() == [
        "error: No such option '--zzz'.",
        "  why: the usage is: qlog [OPTIONS] COMMAND [ARGS]...",
        "  do:  see qlog --help",
    ]
    assert CliRunner().invoke(main, ["nonsense"]).exit_code == 2
    assert CliRunner().invoke(main, []).exit_code == 2


@pytest.mark.parametrize(
    ("error", "what", "why", "do"),
    [
        (
            CliError("it broke", "it was old", "buy a new one"),
            "it broke",
            "it was old",
            "buy a new",
        ),
        (
            FULL,
            "segment 3 needs 9 B; 5 are free",
            "the disk has no room for the next file (code store.full)",
            "free it",
        ),
        (ExceptionGroup("tasks", [FULL, ValueError("late")]), "segment 3", "the disk", "free it"),
        (PermissionError(13, "Permission denied", "x.log"), "x.log: Permission denied", "", ""),
        (PermissionError(13, "Permission denied"), "a system call in body: Permission", "", ""),
        (click.FileError("x", "gone"), "", "", ""),
        (
            ModuleNotFoundError("No module named 'pyarrow.lib'", name="pyarrow.lib"),
            "pyarrow is not installed",
            "it is of the extra 'spark'",
            "pip install 'quorumlog[spark]'",
        ),
    ],
)
def test_an_error_of_a_command_is_three_lines_and_code_3(
    error: Exception, what: str, why: str, do: str
) -> None:
    result = run_command(raising(error))
    assert (result.exit_code, result.stdout) == (3, "")
    first, second, third = result.stderr.splitlines()
    assert first.startswith(f"error: {what}")
    assert second.startswith(f"  why: {why}")
    assert third.startswith(f"  do:  {do}")


@pytest.mark.parametrize(
    ("arguments", "do"),
    [
        (("topc",), "did you mean 'topic' or 'top'? else see qlog --help"),
        (
            ("status",),
            "did you mean 'cluster status' or 'local status' or 'delay status'? else see "
            "qlog --help",
        ),
        (("start",), "did you mean 'local start'? else see qlog --help"),
        (("nodes",), "did you mean 'cluster members'? else see qlog --help"),
        (("user", "show"), "did you mean 'describe'? else see qlog user --help"),
        (
            ("user", "key", "add", "shop", "--access-key", "X"),
            "it is an argument here: give its value without --access-key; else see ",
        ),
        (("topic", "ls"), "did you mean 'list'? else see qlog topic --help"),
        (("version",), "did you mean '--version'? else see qlog --help"),
        (("topic", "descrbe"), "did you mean 'describe'? else see qlog topic --help"),
        (
            ("topic", "list", "--serverr"),
            "did you mean '--server'? else see qlog topic list --help",
        ),
        (("--timeout", "9s", "topic"), "behind the command: qlog COMMAND --timeout; else see "),
        (("send",), "did you mean 'produce' or "),
        (("local", "up"), "did you mean 'start'? "),
        *(
            (("local", name, "2"), f"did you mean '--node 2'? else see qlog local {name} --help")
            for name in ("kill", "stop")
        ),
        (("consume", "orders", "--from-beginning"), "did you mean '--from first'? else see "),
        (("consume", "orders", "--from", "earliest"), "'earliest' is called 'first' here"),
        (("explain", "node.unknown_topik", "-ojsonl"), "did you mean 'node.unknown_topic' or "),
    ],
)
def test_near_names_are_proposed(arguments: tuple[str, ...], do: str) -> None:
    assert do in CliRunner().invoke(main, arguments, prog_name="qlog").stderr


def test_help_is_a_command_too() -> None:
    for words in ((), ("topic",), ("topic", "list")):
        shown = [CliRunner().invoke(main, one) for one in (["help", *words], [*words, "--help"])]
        assert shown[0].exit_code == 0
        assert shown[0].stdout == shown[1].stdout


def test_an_error_is_one_json_document_with_the_same_words() -> None:
    for error in (FULL, AssertionError("offset 3 > 2"), click.UsageError("bad")):
        group = LazyGroup("qlog", lazy={})
        group.add_command(click.Command("act", callback=raising(error), params=[FORM]))
        result = CliRunner().invoke(group, ["act", "-o", "json"], prog_name="qlog")
        document = json.loads(result.stderr)
        assert list(document) == ["code", "what", "why", "do", "exit_code"]
        assert document["exit_code"] == result.exit_code
        assert document["what"] in CliRunner().invoke(group, ["act"], prog_name="qlog").stderr
        assert document["code"] == getattr(error, "code", None)


def _codes_of_the_sources() -> set[str]:
    """Return the values of all names `code` and of constants in capitals that are codes."""
    tops = ("quorumlog", "qlog", "deploy", "node", "store", "raft", "pipeline", "bench")
    text = "\n".join(
        path.read_text()
        for top in (*tops, "chaos-tests/chaos")
        for path in (ROOT / top).rglob("*.py")
    )
    codes = {*re.findall(r'\bcode(?:: [\w\[\]]+)?(?:, \w+)* ?= ?"(\w+\.\w+)"', text), *CAUSES}
    constants = re.findall(r'^[A-Z_]+(?:: Final)? = "(client\.\w+)"$', text, re.MULTILINE)
    roots = {f"{layer}.error" for layer in ("ha", "pipeline", "raft", "store")}
    return {*codes, *constants} - roots


def test_explain_has_the_page_of_each_code_and_the_exit_code_of_its_errors() -> None:
    for code in _codes_of_the_sources():
        result = CliRunner().invoke(main, ["explain", code, "-o", "json"], prog_name="qlog")
        found = json.loads(result.stdout)
        assert (found["code"], len(found["meaning"]) > 20) == (code, True)
    for name, exit_code in (
        ("node.unknown_topic", 4),
        ("node.topic_exists", 5),
        ("store.bad_topic", 5),
        ("client.bad_argument", 2),
        ("client.bad_frame", 7),
        ("local.bad_port", 2),
        ("node.unknown_queue", 4),
        ("client.deadline", 6),
        ("node.timeout", 7),
        ("client.unavailable", 3),
        ("store.locked", 3),
    ):
        result = CliRunner().invoke(main, ["explain", name, "-o", "json"], prog_name="qlog")
        assert json.loads(result.stdout)["exit_code"] == exit_code, name
    assert CliRunner().invoke(main, ["explain", "no.such"]).exit_code == ExitCode.NOT_FOUND


def test_explain_has_a_list_of_all_and_the_codes_that_end_with_an_exit_code() -> None:
    rows = json.loads(CliRunner().invoke(main, ["explain", "-o", "json"]).stdout)
    codes = {row["code"]: row["exit_code"] for row in rows}
    assert {code for code in _codes_of_the_sources() if "client.bad_" not in code} <= {*codes}
    assert {f"{int(code)}" for code in ExitCode} <= {*codes}
    text = CliRunner().invoke(main, ["explain", "6"]).stdout
    assert text.splitlines()[1] == "        6  time ran out, and nothing was done"
    assert "client.deadline" in text
    assert "client.unavailable" not in text
    document = json.loads(CliRunner().invoke(main, ["explain", "2", "-o", "json"]).stdout)
    assert "a token is wrong; nothing" in document["meaning"]


def test_a_bug_shows_its_traceback_and_is_code_3() -> None:
    result = run_command(raising(AssertionError("offset 3 > 2")))
    assert result.exit_code == 3
    assert "Traceback" in result.stderr
    assert result.stderr.splitlines()[-3] == "error: AssertionError: offset 3 > 2"


def test_an_interrupt_is_code_130() -> None:
    result = run_command(raising(KeyboardInterrupt()))
    assert result.exit_code == ExitCode.INTERRUPTED
    assert result.stderr.splitlines()[-1] == "interrupted"


def test_a_reader_that_goes_away_is_no_finding() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        program = "from qlog import main; main(['--help'])"
        done = subprocess.run(
            [sys.executable, "-c", program], stdout=writing, stderr=subprocess.PIPE, check=False
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (ExitCode.BROKEN_PIPE, b"")


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ("act >/dev/full", 3, "do not run it again"),
        ("act -o json >/dev/full", 3, "do not run it again"),
        ("act >&-", 3, "nothing was done"),
        ("act >/dev/full 2>/dev/full", 3, ""),
        ("act 2>/dev/full", 0, ""),
        ("fail 2>/dev/full", 3, ""),
        ("fail 2>&{full}", 3, ""),
        ("act -o json >/dev/full 2>&{full}", 3, ""),
        ("load", 3, "a library cannot be loaded"),
        ("--zzz 2>/dev/full", 2, ""),
    ],
)
def test_the_streams_change_no_exit_code_and_ask_for_no_work_twice(
    tmp_path: Path, words: str, code: int, says: str
) -> None:
    reading, full = os.pipe()  # `full`: a pipe that does not wait, and has no room.
    os.set_blocking(full, False)
    with open(reading, "rb"), open(full, "wb", buffering=0) as filler:
        while filler.write(bytes(4_096)):
            pass
        done = subprocess.run(
            ["bash", "-c", f'"$0" -c "$1" {words.format(full=full)}', sys.executable, STREAMS],
            cwd=tmp_path,
            capture_output=True,
            pass_fds=[full],
            text=True,
            check=False,
        )
    assert (done.returncode, says in done.stderr) == (code, True), done
    assert "Traceback" not in done.stderr
    assert (tmp_path / "work").exists() is (words.startswith("act") and ">&-" not in words)


STREAMS = """
import click
from pathlib import Path
from qlog import LazyGroup
from qlog.output import output_option, print_record

@click.group(cls=LazyGroup, lazy={})
def main(): ...

@main.command()
@output_option
def act(output):
    Path("work").touch()
    click.echo("progress", err=True)
    print_record({"done": True}, output)

@main.command()
def fail(): raise OSError(5, "it broke")

@main.command()
def load():
    raise ImportError("cannot import it", name="google.protobuf.pyext")

main()
"""
