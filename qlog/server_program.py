"""The way from `qlog` of the distribution `quorumlog` to the server's half of it.

Owns where commands run that need a node's code. A checkout and `pip install .` have all modules in
one place, and run them in the process. The distribution `quorumlog-server` keeps them in a folder
of its own, away from applications, and is run as a program.
"""

import os
import subprocess
import sys
from importlib.util import find_spec

from quorumlog.command_errors import CliError
from quorumlog.local_cluster import CAUSES


def is_server_missing() -> bool:
    """Return whether neither this process nor a program beside it can run a server command."""
    return not _is_here() and find_spec("quorumlog_server") is None


def enter_server() -> None:
    """Return if this process can import the server's modules; else run the whole command line in
    the server's program, and end as it ends.

    Raises CliError if that is not installed.
    """
    if _is_here():
        return
    if is_server_missing():
        raise CliError(
            "the server of QuorumLog is not installed, and this needs it",
            CAUSES["local.no_server"],
            "install the wheel of quorumlog-server: pip install quorumlog_server-*.whl",
            code="local.no_server",
        )
    # -P: a folder of that name where the command runs must not be mistaken for ours.
    command = [sys.executable, "-P", "-m", "quorumlog_server", *sys.argv[1:]]
    if os.name == "posix":  # Elsewhere exec is a new process, which the shell does not wait for.
        os.execv(command[0], command)
    sys.exit(subprocess.run(command, check=False).returncode)


def _is_here() -> bool:
    return find_spec("qlog.server") is not None
