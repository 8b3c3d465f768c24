"""The contexts of a user: names of clusters, with the addresses and the files that go with each.

Owns the file, `quorumlog/contexts.json` in the user's directory of settings. Must not know which
command reads it.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from shlex import quote
from typing import Any, Final

import click

from quorumlog.cluster.tls import ClientTls
from quorumlog.command_errors import CliError, ExitCode
from quorumlog.user_files import UserFileError, read_user_file

try:
    import fcntl
except ImportError:  # On Windows, where commands that write at once may undo each other.
    fcntl = None  # type: ignore[assignment]

DEFAULT: Final = "default"
"""The context without a choice: the local cluster, else the default address."""


@dataclass(frozen=True, slots=True)
class Context:
    """A cluster: HOST:PORT,... and absolute paths of files, empty where not given."""

    server: str
    tls: ClientTls
    source_keys: str = ""
    """Access key and secret of the RocketMQ cluster that this one imports from."""
    source_ca: str = ""
    """Who signed the certificates of that cluster."""
    token_file: str = ""
    """With the token of the user that calls, which is not kept here."""

    @classmethod
    def of(cls, name: str, row: Any) -> "Context":
        """Return the context of a row of the file. Raises ValueError in words."""
        tls = row.get("tls") if isinstance(row, dict) else None
        if not isinstance(tls, dict) or "server" not in row:
            raise ValueError(f"context {name!r} has no server or no tls")
        files = {each: value for each, value in row.items() if each != "tls"}
        if wrong := [each for each, value in (files | tls).items() if not isinstance(value, str)]:
            raise ValueError(f"of context {name!r} is no text: {', '.join(wrong)}")
        known = {one.name for one in fields(cls)}
        if strange := [*(files.keys() - known), *(tls.keys() - set(ClientTls._fields))]:
            raise ValueError(f"context {name!r} has an unknown {strange[0]!r}")
        return cls(tls=ClientTls(**tls), **files)


@dataclass(slots=True)
class Contexts:
    """All contexts by name, and which of them commands use."""

    current: str = DEFAULT
    by_name: dict[str, Context] = field(default_factory=dict)

    @classmethod
    def load(cls) -> "Contexts":
        """Read the file; without one there are none. Raises CliError for another content, a choice
        that it lacks included: commands must not go to another cluster then."""
        do = f"mend it, or remove it and make the contexts again: rm {quote(str(path()))}"
        try:
            return cls._of(json.loads(read_user_file(path())))
        except UserFileError as error:
            is_absent = isinstance(error.__cause__, FileNotFoundError | NotADirectoryError)
            if is_absent and not os.path.islink(path()):
                return cls()
            why, do = error.what, do if error.__cause__ is None else error.do
            if os.path.isdir(path()):
                do = f"move the directory away: mv {quote(str(path()))} {quote(f'{path()}.old')}"
        except RecursionError:
            why = "it is nested too deep"
        except ValueError as error:
            fault = error if type(error) is ValueError else "it is no JSON"
            why = f"another program wrote it, or a part of it is lost: {fault}"
        what = f"{path()} has no contexts that can be read"
        raise CliError(what, why, do, ExitCode.USAGE)

    @classmethod
    def _of(cls, read: Any) -> "Contexts":
        """Return the contexts of a file. Raises ValueError in words."""
        rows = read.get("contexts") if isinstance(read, dict) else None
        if not isinstance(rows, dict) or "current" not in read:
            raise ValueError("it has no contexts or no current one")
        by_name = {name: Context.of(name, row) for name, row in rows.items()}
        if read["current"] not in (DEFAULT, *by_name):
            raise ValueError(f"the current one is {read['current']!r}, and it has no such one")
        return cls(read["current"], by_name)

    @classmethod
    @contextmanager
    def changed(cls) -> Iterator["Contexts"]:
        """Yield the contexts, and replace the file at the end of the block, which is that of one
        command at a time. Only the user may read it: it names where private keys are."""

        def private(name: str | Path, flags: int) -> int:
            return os.open(name, flags, 0o600)

        path().parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(path().with_suffix(".lock"), "a", opener=private) as lock:
            if fcntl is not None:
                fcntl.flock(lock, fcntl.LOCK_EX)
            contexts = cls.load()
            yield contexts
            rows = {
                name: {**asdict(one), "tls": one.tls._asdict()}
                for name, one in contexts.by_name.items()
            }
            new = path().with_suffix(".new")
            with open(new, "w", encoding="utf-8", opener=private) as stream:
                json.dump({"current": contexts.current, "contexts": rows}, stream, indent=2)
            new.replace(path())

    def chosen(self) -> Context | None:
        """Return the context that commands use; None: the default one."""
        return self.by_name.get(self.current)


def path() -> Path:
    """Return where the file is: below XDG_CONFIG_HOME, or its like on other systems."""
    directory = click.get_app_dir("quorumlog")
    if not os.path.isabs(directory):  # XDG has a relative one ignored: it changes with each cd.
        directory = os.path.expanduser("~/.config/quorumlog")
    return Path(directory, "contexts.json")
