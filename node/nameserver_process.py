"""A replica of the name server in a process of its own, without a log.

Owns that process: the lock of its directory, its client service, signals and exit codes. Serves as
a third replica on a machine that holds no log, or as each of the replicas. With users on it takes
calls of nodes, which show the secret, and of the user of `users_file`: it has no replicated state
that would tell others. Must not know brokers.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Final

import structlog
import uvloop

from node.config.conflicts import check_files
from node.config.exposure import exposures
from node.config.limits import PortLimits
from node.config.load import ConfigError, ConfigProblem, load
from node.config.settings import Settings
from node.config.types import Address
from node.errors.common import NodeError
from node.errors.nameserver import FilesDamagedError
from node.nameserver.calls import NameServerCalls
from node.nameserver.report_judge import ReportJudge
from node.nameserver.service import NameServerService
from node.peers.security.tls import TlsFileError, date_warnings
from node.renewed_files import RenewedFiles
from node.runtime.accounts import Accounts, limits_of
from node.runtime.background import BackgroundTasks
from node.runtime.clock import unix_ms
from node.runtime.fail_stop import (
    EXIT_BAD_CONFIG,
    EXIT_BAD_DATA,
    EXIT_OK,
    EXIT_TRY_LATER,
    FailStop,
    stop_signals,
)
from node.runtime.logs import form
from node.runtime.logs.rate_limited_log import RateLimitedLog
from node.runtime.node_file import remove_node_file, write_node_file
from node.runtime.private_files import make_private
from node.runtime.renewal import Renewals
from node.services.calls import ServedCalls
from node.services.door import Door
from node.services.methods import nameserver_handlers
from node.services.server import GrpcServer, PortTakenError
from node.state.tables.users import user_of
from node.users.guard import Guard
from node.users.node_proofs import NodeProofs
from node.users.users import Users
from store.durability.fatal import EXIT_SYNC_FAILED
from store.durability.identity import DirectoryLock
from store.errors import StoreError, SyncFailedError
from store.files.file_system import FileSystem

CALL_GRACE_MS: Final = 500
_log: Final = structlog.get_logger(component="nameserver")


def load_settings(file: str | None, flags: Mapping[str, Any]) -> Settings:
    """Read the settings as those of a node; `node_id` is optional. Raises ConfigError."""
    try:
        settings = load(file, flags).settings
    except ConfigError as error:
        if "node_id" not in [problem.key for problem in error.problems]:
            raise
        # This process is not one of the nodes in `peers`; it only needs their addresses.
        settings = load(file, {**flags, "node_id": "1", "join": "true"}).settings
    if settings.users == "on" and settings.secret_file is None:
        what, do = "nodes could not show that they are nodes", "name the file that they have"
        raise ConfigError((ConfigProblem("secret_file", "", "default", what, do),))
    if settings.nameserver() is None:
        what, do = "nothing would run", "name an IP address and a port for the other replicas"
        raise ConfigError((ConfigProblem("nameserver_listen", "off", "default", what, do),))
    return settings


def run(settings: Settings) -> int:
    """Serve until told to stop, or until the replica cannot go on; return the exit code."""
    form.configure(settings.log_level, settings.log_format, bound={"node": "nameserver"})
    make_private(settings.directory)
    lock = DirectoryLock(FileSystem(), str(settings.directory))
    try:
        lock.acquire()
        return uvloop.run(_live(settings))
    except (StoreError, NodeError, PortTakenError, OSError) as error:
        _log.error("cannot start", code=getattr(error, "code", "os"), error=str(error))
        return EXIT_BAD_CONFIG if isinstance(error, TlsFileError) else EXIT_TRY_LATER
    finally:
        lock.release()


async def _live(settings: Settings) -> int:
    report_judge = ReportJudge.of(settings, is_standalone=True)
    service = NameServerService(settings.nameserver(), None, report_judge=report_judge)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in stop_signals():
        loop.add_signal_handler(number, stop.set)
    async with AsyncExitStack() as life:
        await _start(settings, service, life)
        await _either(stop.wait(), service.ended())
        code = _exit_code(service.failure) if not stop.is_set() else EXIT_OK
    _log.info("stopped", exit_code=code)
    return code


async def _start(settings: Settings, service: NameServerService, life: AsyncExitStack) -> None:
    """Serve; the end of everything that this opens is put on `life`."""
    limits = PortLimits.from_environment(os.environ)
    server = GrpcServer(Accounts(limits_of(settings.rpc_count_max)), limits)
    renewals, guard = Renewals(), Guard(settings.users, unix_ms)
    refused = RateLimitedLog(logging.getLogger(__name__))
    guard.on_refused = lambda _caller, call, error: refused.warn(
        "a call was refused", f"{call}: {error}"
    )
    guard.on_administered = lambda caller, call, _need, _request, code: _log.info(
        "administration", user=caller.name, call=call, code=code or "ok"
    )
    proofs = NodeProofs(settings.cluster_id, settings.node_id, unix_ms)
    files = RenewedFiles(settings, renewals, proofs)
    files.on_secrets.append(service.report_judge.renew)
    if settings.users_file is not None:
        renewals.watch("user", [settings.users_file], partial(_read_user, settings, guard))
        _read_user(settings, guard)()
    port = server.bind(settings.listen, files.grpc_credentials())
    for warning in date_warnings(files.tls_validity, time.time()):
        _log.warning(str(warning))
    addresses: dict[str, object] = {
        "address": str(Address(settings.listen.host, port)),
        "nameserver_address": str(settings.nameserver_listen),
    }
    life.callback(remove_node_file, settings.directory)
    write_node_file(settings.directory, addresses)
    life.push_async_callback(service.stop)
    service.start()
    door = None if settings.users == "off" else Door(guard, proofs)
    calls = ServedCalls(FailStop(settings.directory), door=door)
    tasks = BackgroundTasks("a task of the name server failed")
    life.push_async_callback(tasks.end)
    tasks.run(renewals.run())
    life.push_async_callback(server.stop, CALL_GRACE_MS)
    await server.start(nameserver_handlers(calls, NameServerCalls(service)))
    await server.set_serving(True)
    _log.info("listening", **addresses)
    for one in exposures(settings):
        if one.setting == "listen":  # This process opens no other of these ports.
            _log.warning("strangers could misuse a port", port=one.setting, what=str(one))


def _read_user(settings: Settings, guard: Guard) -> Callable[[], None]:
    """Return what makes the user of the file, an admin, the only one that is known."""
    check_files(settings, "users_file")
    first = settings.first_user()
    assert first is not None, "the file is set"
    return partial(guard.look, Users({first.name: user_of(first)}, {}))


async def _either(*work: Coroutine[Any, Any, object]) -> None:
    tasks = [asyncio.ensure_future(one) for one in work]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _exit_code(failure: Exception | None) -> int:
    match failure:
        case SyncFailedError():
            return EXIT_SYNC_FAILED
        case FilesDamagedError():
            return EXIT_BAD_DATA
    return EXIT_BAD_CONFIG
