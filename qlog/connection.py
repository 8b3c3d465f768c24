"""The connection of commands: `--server`, its defaults, TLS, one event loop, Ctrl-C.

Owns the choice of addresses and the life of the client. Must not know any command. grpc and the
client are imported when a command runs, so that help stays fast.
"""

import asyncio
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

import click

from qlog.contexts import DEFAULT, Context, Contexts
from qlog.output import print_text
from qlog.parsed import Parsed, duration_text, parse_duration
from qlog.progress import line_shown
from qlog.server_program import is_server_missing
from qlog.transport import TOKEN_FILE_VARIABLE, TOKEN_VARIABLE, token_file, transport
from quorumlog.cluster.grpc_engine import check_descriptors
from quorumlog.cluster.tls import ClientTls, TlsCredentials
from quorumlog.command_errors import CliError, ExitCode, nearest
from quorumlog.errors import DeadlineError, PemFileError, QuorumlogError, UnavailableError
from quorumlog.foreign_text import shown
from quorumlog.local_cluster import (
    CAUSES,
    DIRECTORY_VARIABLE,
    TOKEN_FILE,
    DamagedStateError,
    default_directory,
    known_servers,
)
from quorumlog.standard_output import wait_for_hang_up
from quorumlog.user_files import UserFileError, read_user_text
from quorumlog.user_tokens import fault_of_token, has_token

if TYPE_CHECKING:
    from quorumlog.client import Client

DEFAULT_PORT = 8081
DEFAULT_SERVER = f"127.0.0.1:{DEFAULT_PORT}"
SERVER_VARIABLE = "QUORUMLOG_SERVER"
CA_VARIABLE = "QUORUMLOG_CLIENT_TLS_CA_FILE"
CERTIFICATE_VARIABLE = "QUORUMLOG_CLIENT_TLS_CERTIFICATE_FILE"
KEY_VARIABLE = "QUORUMLOG_CLIENT_TLS_KEY_FILE"
TLS_VARIABLES = (CA_VARIABLE, CERTIFICATE_VARIABLE, KEY_VARIABLE)
"""Differ from the names of a node's settings: an exported variable must not change a node."""
CALL_TIMEOUT_MS = 10_000
CONNECT_TIMEOUT_MS = 2_000
"""Without --timeout: a node that is just starting is met."""
_SILENT_S = 0.3
_SHOWN_LENGTH = 48
"""Characters of addresses in a line of 80 columns, which goes away as a whole."""
LEAVE_CONTEXT = f"qlog context use {DEFAULT}"
_OF_LOCAL = "the cluster of 'qlog local'"
_OF_DEFAULT = f"the default (no --server, {SERVER_VARIABLE}, context or local cluster)"
_GC_THRESHOLDS = (20_000, 20, 20)

_Result = TypeVar("_Result")
_Function = TypeVar("_Function", bound=Callable[..., Any])
_TIMEOUT = "timeout_ms"  # Of what commands share for the run.


address_option = click.option(
    "-s",
    "--server",
    envvar=SERVER_VARIABLE,
    metavar="HOST:PORT,...",
    help="Nodes of the cluster; one is enough, the others are learnt.  [env var: "
    f"{SERVER_VARIABLE}; default: those of 'qlog context', else of 'qlog local', else "
    f"{DEFAULT_SERVER}]",
)
"""Decorates a command with `--server`; it arrives as the argument `server`, a text or None."""


def _keep_timeout(context: click.Context, _parameter: click.Parameter, value: int | None) -> None:
    context.meta[_TIMEOUT] = value


timeout_option = click.option(
    "--timeout",
    metavar="DURATION",
    type=Parsed("duration", parse_duration),
    expose_value=False,
    callback=_keep_timeout,
    help="Longest wait for an answer, or for what --until names: 500ms, 10s, 5m.  [default: 10s, "
    "of them 2s for a first node; 30s in 'qlog produce'; 1m with --until]",
)
"""Decorates a command with `--timeout`, which `call_timeout_ms` returns."""


def server_option(command: _Function) -> _Function:
    """Decorate a command that connects with `--server` and `--timeout`."""
    return address_option(timeout_option(command))


def call_timeout_ms(default_ms: int) -> int:
    """Return what `--timeout` says, else the default."""
    context = click.get_current_context(silent=True)
    given = None if context is None else context.meta.get(_TIMEOUT)
    return given or default_ms


def limit_calls(ends: float) -> None:
    """Let calls end at a time of `time.monotonic`, or up to a second later: a look without any
    time would tell nothing."""
    left_ms = int((ends - time.monotonic()) * 1000)
    click.get_current_context().meta[_TIMEOUT] = max(1_000, min(left_ms, CALL_TIMEOUT_MS))


def addresses(server: str | None) -> str:
    """Return the addresses: the given ones, else those of the context, else those of the local
    cluster, else the default.

    Raises CliError for text that is no list of HOST:PORT, and for a local cluster that is stopped:
    another one at the default address is not meant.
    """
    return _addresses(server)[0]


def _addresses(server: str | None) -> tuple[str, str]:
    """Return the addresses, and where they are from."""
    from quorumlog.cluster.routes import is_address

    if server is not None:
        command = click.get_current_context(silent=True)
        source = command and command.get_parameter_source("server")
        is_variable = source is click.core.ParameterSource.ENVIRONMENT
        origin = SERVER_VARIABLE if is_variable else "--server"
    else:
        server, origin = default_addresses(Contexts.load())
    for one in server.split(","):
        if not is_address(one.strip()):
            raise CliError(
                f"{one.strip()!r} is no address of a server",
                f"{origin} has it, where HOST:PORT belongs, several with commas between",
                f"for example --server {DEFAULT_SERVER}",
                ExitCode.USAGE,
            )
    return ",".join(one.strip() for one in server.split(",")), origin


def default_addresses(contexts: Contexts) -> tuple[str, str]:
    """Return the addresses without --server and its variable, and where they are from. Raises
    CliError as `addresses` does."""
    if (context := contexts.chosen()) is not None:
        return context.server, f"context {contexts.current!r}"
    if (server := _local_servers()) is not None:
        return server, _OF_LOCAL
    return DEFAULT_SERVER, _OF_DEFAULT


def diversions(cluster: str) -> Iterator[tuple[str, str]]:
    """Yield what sends commands elsewhere than to a cluster, with the command that ends that."""
    given, contexts = os.environ.get(SERVER_VARIABLE), Contexts.load()
    chosen = contexts.chosen()
    for what, server, end in (
        (SERVER_VARIABLE, given, f"unset {SERVER_VARIABLE}"),
        (f"context {shown(contexts.current, 20)!r}", chosen and chosen.server, LEAVE_CONTEXT),
    ):
        if server and not {*server.split(",")} & {*cluster.split(",")}:
            yield what, end


def _local_servers() -> str | None:
    try:
        known = known_servers()
    except DamagedStateError as error:
        do = "name another cluster with --server"
        do += "" if is_server_missing() else ", or see 'qlog local status'"
        raise CliError(error.what, CAUSES[error.code], do, code=error.code) from error
    if known is None or known.is_running:
        return None if known is None else known.addresses
    has_local, do = not is_server_missing(), f"name nodes: --server {DEFAULT_SERVER}"
    others = f"and no --server, {SERVER_VARIABLE} or context names another"
    if known.addresses:
        raise CliError(
            f"the local cluster in {default_directory()} is stopped",
            f"none of its nodes runs, {others}",
            "start it: qlog local start" if has_local else do,
            code="local.not_running",
        )
    is_named = os.environ.get(DIRECTORY_VARIABLE)
    raise CliError(
        f"there is no local cluster in {default_directory()}",
        f"{f'{DIRECTORY_VARIABLE} names it' if is_named else 'the directory is there'}, {others}",
        f"start one: qlog local start, or {do}" if has_local else do,
        code="local.none",
    )


def tls_files(server: str | None) -> ClientTls:
    """Return the files of the three variables if one is set, else those of the context if it names
    the addresses. Raises CliError for a certificate without a key."""
    files = ClientTls(*(os.environ.get(name, "") for name in TLS_VARIABLES))
    if bool(files.key) != bool(files.certificate):
        raise CliError(
            f"only one of {CERTIFICATE_VARIABLE} and {KEY_VARIABLE} is set",
            "a client certificate is of use with its private key only",
            "set both or none",
            ExitCode.USAGE,
        )
    context = None if any(files) else context_of(server)
    return context.tls if context else files


def credentials(server: str | None) -> TlsCredentials | None:
    """Return what the files of `tls_files` hold. Raises as it does, and PemFileError."""
    files = tls_files(server)
    try:
        return files.credentials()
    except PemFileError as error:
        contexts = Contexts.load()
        if (context := context_of(server)) is not None and context.tls == files:
            error.origin = f"context {contexts.current!r} names the file"
            error.remedy = (
                f"put the file back, or make the context again: qlog context delete "
                f"{contexts.current}, then qlog context create"
            )
        raise


def token_path(server: str | None) -> str:
    """Return the file of the token: that of `--token-file` or its variable, else of the context if
    it names the addresses; empty: there is none, or the variable of the token goes before it."""
    if (given := token_file()) or os.environ.get(TOKEN_VARIABLE):
        return given
    context = context_of(server)
    return context.token_file if context else ""


def token(server: str | None) -> str:
    """Return the token that shows which user calls; empty: none. Raises CliError."""
    if path := token_path(server):
        return read_token(path)
    text = os.environ.get(TOKEN_VARIABLE, "").strip()
    if text and (fault := fault_of_token(text)):
        do = f"set it to a token, or name its file: {TOKEN_FILE_VARIABLE}=FILE"
        raise CliError(f"{TOKEN_VARIABLE} holds no token", fault, do, ExitCode.USAGE)
    return text


def read_token(path: str) -> str:
    """Return the token of a file. Raises CliError, without anything of the content."""
    do = "name the file that 'qlog user' wrote, or make a token: qlog user token add"
    if has_token(path):
        why = "it stands where the name of its file belongs, and is not shown again here"
        raise CliError("a token is no path", why, do, ExitCode.USAGE)
    try:
        text = read_user_text(path).strip()
        warn_readable(path)
        if fault := fault_of_token(text):
            raise UserFileError(f"it holds no token: {fault}", do)
    except UserFileError as error:
        what = f"the token cannot be read from {path}"
        raise CliError(what, error.what, error.do, ExitCode.USAGE) from None
    return text


def warn_readable(path: str | os.PathLike[str]) -> None:
    """Say on stderr that others can read a file of secrets, if they can."""
    if os.name != "nt" and os.stat(path).st_mode & 0o077:
        print_text(f"others can read {path}; run: chmod 600 {path}", "warning: ", err=True)


def context_of(server: str | None) -> Context | None:
    """Return the context that commands use, if it names the addresses; None: its files belong to
    others, or there is none."""
    return Contexts.load().chosen() if server is None else None


@asynccontextmanager
async def connected(
    server: str | None,
    *,
    timeout_ms: int = CALL_TIMEOUT_MS,
    is_patient: bool = True,
    shows_token: bool = True,
) -> "AsyncIterator[Client]":
    """Yield a client of the cluster for one command. Its errors about a topic or a consumer group
    that does not exist propose near names. An impatient one takes a cluster to be down after 2 s,
    whatever --timeout is."""
    import quorumlog

    timeout_ms = call_timeout_ms(timeout_ms)
    servers, origin = _addresses(server)
    connect_ms = min(CONNECT_TIMEOUT_MS, timeout_ms)
    connect_ms = call_timeout_ms(connect_ms) if is_patient else connect_ms
    line = f"waiting for {shown(servers, _SHOWN_LENGTH)}, {duration_text(connect_ms)} at most"
    is_connected = False
    try:
        async with (
            _waiting(line) as say,
            quorumlog.connect(
                servers,
                timeout_ms=timeout_ms,
                connect_timeout_ms=connect_ms,
                credentials=credentials(server),
                transport=transport(),
                token=token(server) if shows_token else "",
            ) as client,
        ):
            is_connected = True
            say("")
            client._cluster.on_search = say
            try:
                yield client
            except QuorumlogError as error:
                await propose(client, error)
                if error.code == "node.unauthenticated" and origin == _OF_LOCAL:
                    path = default_directory() / TOKEN_FILE
                    if path.exists() and token_path(server) != str(path):
                        error.remedy = f"be its user admin: export {TOKEN_FILE_VARIABLE}={path}"
                raise
    except DeadlineError as error:
        if error.cause and origin == _OF_LOCAL and not is_server_missing():
            error.remedy = "start them: qlog local start; see qlog local status"
        raise
    except UnavailableError as error:
        if error.code == UnavailableError.code and not error.cause:
            error.cause = f"no node of {origin} could be reached, or a connection to one broke"
        elif not is_connected:
            error.origin = f"{origin} gave the address"
            if any(files := tls_files(server)):
                own = context_of(server)
                is_own = own is not None and own.tls == files
                error.origin += " and the TLS files" if is_own else ", variables the TLS files"
        if is_connected:
            raise
        if origin.startswith("context "):
            error.proposal = f"leave {origin} with '{LEAVE_CONTEXT}', or "
        elif not error.remedy and origin in (_OF_LOCAL, _OF_DEFAULT):
            start = "start nodes here with 'qlog local start', or "
            error.proposal = "name nodes with --server, or " if is_server_missing() else start
        raise


@asynccontextmanager
async def _waiting(first: str) -> AsyncIterator[Callable[[str], None]]:
    """Yield a function that takes what the command waits for, after a first text: a line on a
    terminal's stderr from 0.3 s on, until it gets an empty text or the block ends. A shell that
    completes a word has no command, and no line."""
    command = click.get_current_context(silent=True)
    texts = [""]
    with ExitStack() as stack:

        def show() -> None:
            stack.enter_context(line_shown())(texts[0])

        def say(text: str) -> None:
            if not text:
                stack.close()
            elif not texts[0] and command is not None and sys.stderr.isatty():
                waiting = asyncio.get_running_loop().call_later(_SILENT_S, show)
                stack.callback(waiting.cancel)
            texts[0] = text

        say(first)
        yield say


async def propose(client: "Client", error: QuorumlogError) -> None:
    """Add to an error that a topic, a consumer group, a user or a role does not exist which name is
    near it."""
    names: list[str] = []
    command = click.get_current_context().info_name
    if error.code == "node.unknown_topic" and command not in ("produce", "consume"):
        error.remedy = "check the name: 'qlog topic list' has all"  # To make it would not help.
    with suppress(QuorumlogError):
        if error.code == "node.unknown_topic":
            names = [info.topic for info in await client.admin.list_topics()]
        elif error.code == "node.unknown_group":
            names = [info.group for info in await client.admin.list_groups()]
        elif error.code == "node.unknown_user":
            names = [one.name for one in await client.admin.users()]
        elif error.code == "node.unknown_role":
            names = [one.name for one in await client.admin.roles()]
    params = click.get_current_context().params.values() if names else ()
    given = [text for one in params for text in (one if isinstance(one, tuple) else (one,))]
    for name in (text.partition(":")[0] for text in given if isinstance(text, str)):
        if repr(name) in str(error):
            error.proposal = nearest(name, names)


def run(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Run a command's coroutine to its end. Ctrl-C cancels it and raises KeyboardInterrupt."""
    try:
        check_descriptors()
    except QuorumlogError:
        work.close()
        raise
    # Before gRPC is imported: else its core writes a line for each handshake that fails.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    # A call's objects are freed without the collector, which else runs after every few calls.
    gc.set_threshold(*_GC_THRESHOLDS)
    try:
        import uvloop
    except ImportError:  # An extra, and not for Windows.
        return asyncio.run(work)
    return uvloop.run(work)


def ask(server: str | None, call: "Callable[[Client], Coroutine[Any, Any, _Result]]") -> _Result:
    """Connect, make the one call of a command, and return its result."""

    async def act() -> _Result:
        async with connected(server) as client:
            return await call(client)

    return run(act())


class StopSignals:
    """Ctrl-C or SIGTERM, as two events: end cleanly, and end now."""

    def __init__(self) -> None:
        self.requested = asyncio.Event()
        self.forced = asyncio.Event()

    def on_signal(self) -> None:
        """Ask for a clean end at the first signal, and for an end at once at the second."""
        if self.requested.is_set():
            self.forced.set()
        self.requested.set()


@contextmanager
def stop_on_signals() -> Iterator[StopSignals]:
    """Within the block, let signals set the events instead of cancelling the program."""
    stop = StopSignals()
    loop = asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM)
    with suppress(NotImplementedError):  # On Windows Ctrl-C cancels the program.
        for number in signals:
            loop.add_signal_handler(number, stop.on_signal)
    try:
        yield stop
    finally:
        with suppress(NotImplementedError):
            for number in signals:
                loop.remove_signal_handler(number)


async def until(stop: asyncio.Event, work: Coroutine[Any, Any, _Result]) -> _Result | None:
    """Await the work and return its result; None if the event is set first and cancels it."""
    task = asyncio.ensure_future(work)
    waiter = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({task, waiter}, return_when=asyncio.FIRST_COMPLETED)
        await _cancelled(task)
        return None if task.cancelled() else task.result()
    finally:
        waiter.cancel()
        await _cancelled(task)


async def beside(helper: Coroutine[Any, Any, None], work: Coroutine[Any, Any, _Result]) -> _Result:
    """Await the work while a helper runs, which ends with it; an error of the helper is raised."""
    task, other = asyncio.ensure_future(work), asyncio.ensure_future(helper)
    try:
        await asyncio.wait({task, other}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            other.result()
        return await task
    finally:
        await _cancelled(task)
        await _cancelled(other)


class Reader:
    """The reader of stdout, watched by a thread: the end of the program does not wait for it."""

    def __init__(self) -> None:
        self._gone, loop = asyncio.Event(), asyncio.get_running_loop()

        def watch() -> None:
            with suppress(RuntimeError):  # The loop is closed.
                if wait_for_hang_up(None):
                    loop.call_soon_threadsafe(self._gone.set)

        threading.Thread(target=watch, daemon=True).start()

    async def during(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Await the work. Raises BrokenPipeError if the reader goes away before its end."""

        async def leave() -> None:
            await self._gone.wait()
            raise BrokenPipeError

        return await beside(leave(), work)


async def _cancelled(task: "asyncio.Future[Any]") -> None:
    """Cancel a task that is not done, and wait until it has cleaned up. Its error is the caller's
    to raise, or is dropped."""
    if not task.done():
        task.cancel()
        await asyncio.wait({task})
    if not task.cancelled():
        task.exception()  # Else asyncio reports one that no caller raises on stderr.


def confirm(question: str, *, is_confirmed: bool) -> None:
    """Ask before a step that cannot be undone; without a terminal, --yes is needed."""
    if is_confirmed:
        return
    if not sys.stdin.isatty():
        raise CliError(
            f"it needs a confirmation: {question}",
            "stdin is no terminal, and a command that cannot be undone needs --yes there",
            "run it again with --yes",
            ExitCode.USAGE,
        )
    if not click.confirm(question, err=True):
        click.echo("nothing was changed", err=True)
        click.get_current_context().exit(ExitCode.FINDINGS)
