"""The command line `qlog`, also installed as `quorumlog`.

Owns the top level only: the list of command groups, exit codes and the last handler of errors. A
group lives in a module of its own, in the folder of its subject (`messages`, `cluster`, `server`,
`rocketmq`) or in `commands` of the package that it runs (`bench`, `pipeline`, `planning`), named in
`SECTIONS` by an import string and imported when it is used: help and completion stay fast, and no
server code is loaded before a command asks for it. Where the server's modules are not installed
beside this package, `server_program` runs its commands. `@group.command()` in that module adds a
command, and `qlog.reference` writes docs/cli.md from the help.
"""

import gc
import importlib
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pkgutil import extend_path
from typing import Any

import click

from qlog.parsed import make_strict
from qlog.server_program import enter_server, is_server_missing
from qlog.transport import token_option, transport_option
from quorumlog.cluster.grpc_engine import check_polling, choose_engine
from quorumlog.command_errors import CliError, ExitCode, report, take_signals
from quorumlog.standard_output import drop_unwritten, escape_output, prepare_stderr, prepare_stdout
from quorumlog.version import __version__

__all__ = ["CliError", "ExitCode", "LazyCommand", "LazyGroup", "main"]

__path__ = extend_path(__path__, __name__)  # `quorumlog_server` has `qlog.server` elsewhere.
_SUMMARY_LENGTH_MAX = 1_000
_OF_CLIENTS = ("qlog.cluster.", "qlog.completion", "qlog.explain", "qlog.messages.")


@contextmanager
def paused_collector() -> Iterator[None]:
    """Pause the collector, as modules make many objects and hardly any garbage: it would look
    through all of them again and again, for a third of the time of an import. It stays off if it
    was off before."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@dataclass(frozen=True, slots=True)
class LazyCommand:
    """A command that is imported when it is used. `target` is "module:attribute"."""

    target: str
    summary: str  # Equal to the command's own short help; a test compares them.

    @property
    def is_of_server(self) -> bool:
        """Whether the distribution `quorumlog` lacks its module."""
        return not self.target.startswith(_OF_CLIENTS)

    def load(self) -> click.Command:
        """Import the command; raises for a missing module or a target of another type."""
        module, _, attribute = self.target.partition(":")
        if self.is_of_server:
            enter_server()
        with paused_collector():
            command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command), f"{self.target} is no click command"
        return command


def _commands(*rows: tuple[str, str]) -> dict[str, LazyCommand]:
    """Return the commands of targets with their summaries, by name."""
    names = (target.rpartition(":")[2].replace("_", "-") for target, _ in rows)
    return {name: LazyCommand(*row) for name, row in zip(names, rows, strict=True)}


SECTIONS = {
    "Daily work": _commands(
        ("qlog.messages.produce:produce", "Send messages from a file or a pipe."),
        (
            "qlog.messages.consume:consume",
            "Write the messages of a topic to stdout, and wait for more.",
        ),
        ("qlog.cluster.topic:topic", "Create, list, describe, limit and delete topics."),
        (
            "qlog.cluster.group:group",
            "List, describe and change consumer groups, and see how far they have come.",
        ),
        (
            "qlog.messages.message:message",
            "Fetch single messages, by id or by key, and see what became of one.",
        ),
        (
            "qlog.messages.dlq:dlq",
            "Show the dead letters of a consumer group, and send them again.",
        ),
        (
            "qlog.messages.delay:delay",
            "Show what is held until it is due, and cancel delayed messages.",
        ),
        ("qlog.messages.transaction:transaction", "List and end open transactions of producers."),
    ),
    "Cluster": _commands(
        (
            "qlog.cluster.cluster:cluster",
            "Show the nodes, move the leadership, change the members.",
        ),
        (
            "qlog.cluster.context:context",
            "Save clusters under names, and choose the one that commands use.",
        ),
        (
            "qlog.cluster.events:events",
            "Show what happened at the nodes: elections, disks, damage, repairs.",
        ),
        (
            "qlog.cluster.audit:audit",
            "Show who changed the cluster, and who was refused.",
        ),
        (
            "qlog.cluster.check:check",
            "Say in one line whether all is well, for monitoring programs.",
        ),
        ("qlog.cluster.bundle:debug", "Collect what helps to find a fault."),
        ("qlog.console.command:console", "Show the cluster in a browser."),
        ("qlog.cluster.top:top", "Watch all nodes: role, term, indexes, lag, rates."),
        ("qlog.cluster.ha:ha", "Show a master-slave group, and choose its master by hand."),
        (
            "qlog.cluster.nameserver:nameserver",
            "Run a replica of the name server without a log; or ask the name server.",
        ),
    ),
    "Users": _commands(
        ("qlog.cluster.user:user", "Make users, and give them roles and credentials."),
        ("qlog.cluster.role:role", "List, make and delete roles."),
        ("qlog.cluster.role:acl", "Say what a user may do, and which rule decides."),
    ),
    "Node": _commands(
        ("qlog.server.local:local", "Run a cluster on this machine, without containers."),
        ("qlog.server.serve:serve", "Run one node, until it gets SIGTERM, SIGINT or SIGHUP."),
        ("qlog.server.config:config", "Check and show the settings of a node."),
        ("qlog.server.store:store", "Look into a store directory, offline."),
        ("qlog.server.tls:tls", "Make certificates to try TLS with."),
    ),
    "RocketMQ": _commands(
        (
            "qlog.rocketmq.commands:rocketmq",
            "Move topics, messages and groups from a cluster of Apache RocketMQ.",
        ),
        (
            "qlog.cluster.config_files:config_files",
            "Write and read topics.json, subscriptionGroup.json and the other tables of RocketMQ.",
        ),
    ),
    "Measure": _commands(
        ("bench.commands.bench:bench", "Measure this machine, the engine and the cluster."),
        (
            "planning.commands.plan:plan",
            "Say what a load needs: disks, network, memory, broker groups, hosts, and times after "
            "a fault.",
        ),
        (
            "planning.commands.fleet:fleet",
            "Simulate hosts with many broker groups as hosts and zones fail: numbers only, no "
            "nodes.",
        ),
        (
            "qlog.server.chaos:chaos",
            "Attack a local cluster while it works, and check every answer that clients got.",
        ),
        (
            "pipeline.commands.pipeline:pipeline",
            "Run a job on Spark, in this process or on a cluster.",
        ),
    ),
    "Help": _commands(
        ("qlog.explain:explain", "Say what an error code means."),
        ("qlog.completion:completion", "Print the completion script of a shell."),
    ),
}
"""The commands in the order of `qlog --help`."""
COMMANDS = {name: lazy for commands in SECTIONS.values() for name, lazy in commands.items()}


class LazyGroup(click.Group):
    """A group whose commands are imported on first use, and which reports every failure itself."""

    def __init__(
        self,
        *args: Any,
        lazy: Mapping[str, LazyCommand],
        sections: Mapping[str, Iterable[str]] | None = None,
        **kwargs: Any,
    ) -> None:
        """`sections` has the names of all commands under the titles of the help; None: one list."""
        super().__init__(*args, **kwargs)
        self.lazy, self.sections = lazy, sections

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, without importing any."""
        return sorted({*super().list_commands(ctx), *self.lazy})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command of that name; None if there is none."""
        if cmd_name in self.lazy:
            lazy = self.lazy[cmd_name]
            return _placeholder(cmd_name, lazy) if cmd_name in self._absent() else lazy.load()
        return super().get_command(ctx, cmd_name)

    def _absent(self) -> list[str]:
        of_server = [name for name, lazy in self.lazy.items() if lazy.is_of_server]
        return of_server if is_server_missing() else []

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the text without the examples of commands that are not installed."""
        whole, absent = self.help or "", self._absent()
        examples = re.compile(rf"^ +qlog (?:{'|'.join(absent)}) .*\n", re.MULTILINE)
        self.help = examples.sub("", whole) if absent else whole
        super().format_help_text(ctx, formatter)
        self.help = whole

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the lists of commands without importing those that are lazy."""
        absent = self._absent()
        width = max(map(len, self.list_commands(ctx)))
        for title, names in (self.sections or {"Commands": self.list_commands(ctx)}).items():
            rows = [
                (
                    name.ljust(width),
                    self.lazy[name].summary
                    if name in self.lazy
                    else self.commands[name].get_short_help_str(),
                )
                for name in names
                if name not in absent
            ]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)
        if absent:
            with formatter.section("With quorumlog-server, which is not installed"):
                formatter.write_text(", ".join(absent))

    def main(  # type: ignore[override]  # Click's overloads differ in the return type only.
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        *,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the command line; the process ends with one of ExitCode."""
        if not standalone_mode:
            return super().main(args, prog_name, standalone_mode=False, **extra)
        take_signals()
        choose_engine()
        prepare_stdout()
        prepare_stderr()
        escape_output()
        code = self._run(args, prog_name, **extra)
        drop_unwritten(waits=code != ExitCode.INTERRUPTED)
        sys.exit(code)

    def _run(self, args: Sequence[str] | None, prog_name: str | None, **extra: Any) -> int:
        stdout = sys.stdout
        try:
            check_polling()
            _check_docstrings()
            if not os.environ.get("COMP_CWORD", "0").isdecimal():
                os.environ["COMP_CWORD"] = "0"  # Click completes a word of this number.
            words = list(sys.argv[1:] if args is None else args)
            _check_for_tokens(words)
            if words[:1] == ["help"]:
                words = [*words[1:], "--help"]
            result = super().main(words, prog_name, standalone_mode=False, **extra)
            sys.stdout.flush()  # Here, so that a broken pipe is met below and not at exit.
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            return ExitCode.USAGE
        except (click.Abort, KeyboardInterrupt):  # The second of the last flush.
            return report(click.Abort())
        except SystemExit:
            # Click met a broken pipe, replaced stdout and chose 1, which means findings here.
            if sys.stdout is stdout:
                raise
            return ExitCode.BROKEN_PIPE
        except BrokenPipeError:
            return ExitCode.BROKEN_PIPE
        except Exception as error:  # noqa: BLE001 - the last handler; it reports all of them.
            return report(error, sys.argv[1:] if args is None else args)
        # Click hands ctx.exit(code) back as a result too, so an int is always an exit code.
        return result if isinstance(result, int) else ExitCode.OK


_TOKEN_PREFIX = "qlt_"


def _check_for_tokens(words: Iterable[str]) -> None:
    """Refuse a token among the words, wherever it stands, before one of them is sent or shown."""
    suspects = [word for word in words if _TOKEN_PREFIX in word]
    if not suspects:
        return  # Without the import below, which costs each start its time.
    from quorumlog.user_tokens import has_token

    if any(map(has_token, suspects)):
        raise CliError(
            "a token stands in the command line",
            "others find it there: in the history of the shell, among the processes, in logs",
            "write it to a file of your own and use --token-file FILE; replace this token",
            ExitCode.USAGE,
        )


def _placeholder(name: str, lazy: LazyCommand) -> click.Command:
    """Return the place of a command of the server that is not installed: it has a help."""
    text = f"{lazy.summary}\n\nNeeds quorumlog-server, which is not installed."
    words = click.Argument(["words"], nargs=-1, type=click.UNPROCESSED)
    return click.Command(
        name,
        {"ignore_unknown_options": True},
        lambda words: enter_server(),
        [words],
        help=text,
        short_help=lazy.summary,
    )


def _whole_summary(command: click.Command, _limit: int = 0) -> str:
    """Return the first sentence of a help: click cuts it off where the help folds it."""
    return _short_help(command, _SUMMARY_LENGTH_MAX)


make_strict()
_short_help = click.Command.get_short_help_str
click.Command.get_short_help_str = _whole_summary  # type: ignore[method-assign, assignment]


def _check_docstrings() -> None:
    if sys.flags.optimize > 1:
        raise CliError(
            "Python leaves out docstrings (-OO, PYTHONOPTIMIZE=2)",
            "they are the help of the commands, and name the keys of their output",
            "run it without; PYTHONOPTIMIZE may be 1",
        )


@click.group(
    cls=LazyGroup,
    lazy=COMMANDS,
    sections=SECTIONS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="qlog")
@transport_option
@token_option
def main(transport: str, token_file: str | None) -> None:
    """Run, inspect and measure QuorumLog, a replicated message log.

    A broker group is the nodes that hold copies of one log; a cluster has one or several, and a
    topic has queues in each. A message is acked when its sender has the receipt.

    \b
    Examples:
      qlog topic create orders --queues 8
      qlog produce orders --file orders.txt
      qlog consume orders --until end
      qlog cluster status
      qlog top
      qlog store verify DIR           check every byte of a store, offline
      qlog bench produce              measure three nodes on this machine

    \b
    Variables that name PEM files, for a cluster with TLS:
      QUORUMLOG_CLIENT_TLS_CA_FILE           who signed its certificates
      QUORUMLOG_CLIENT_TLS_CERTIFICATE_FILE  with tls_client_auth: your own
      QUORUMLOG_CLIENT_TLS_KEY_FILE          and its private key

    \b
    Exit codes:
      0    done, and nothing is wrong
      1    done, and it found something: damage, a node that is down, no message
      2    the command line makes no sense, or a file of settings, TLS, contexts
           or a token is wrong; nothing was done ('qlog serve' ends with 78)
      3    it failed, as when no node can be reached; stderr says what, why and
           what to do (if stdout cannot be written, the work before that is done)
      4    not found: there is no such topic, group, message or node
      5    refused by the cluster, and it would refuse the same again
      6    time ran out, and nothing was done
      7    the outcome is unknown: it may have been done
      130  Ctrl-C, SIGTERM, or the terminal was closed
      141  the reader of the output went away
    'qlog check' alone has the codes of monitoring plugins.
    With -o json an error is one JSON document on stderr, with the keys code,
    what, why, do, exit_code.
    """
