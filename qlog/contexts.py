"""The contexts of a user: names of clusters, with the addresses and the files that go with each.

Owns the file, `quorumlog/contexts.json` in the user's directory of settings. Must not know which
command reads it.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
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

    @classmethod
    def of(cls, row: dict[str, Any]) -> "Context":
        """Return the context of a row of the file. Raises ValueError, KeyError or TypeError."""
        tls, rest = row["tls"], {name: value for name, value in row.items() if name != "tls"}
        if wrong := [name for name, value in {**rest, **tls}.items() if not isinstance(value, str)]:
            raise ValueError(f"no text: {', '.join(wrong)}")
        return cls(tls=ClientTls(**tls), **rest)


@dataclass(slots=True)
class Contexts:
    """All contexts by name, and which of them commands use."""

    current: str = DEFAULT
    by_name: dict[str, Context] = field(default_factory=dict)

    @classmethod
    def load(cls) -> "Contexts":
        """Read the file; without one there are none. Raises CliError for another content, a choice
        that it lacks included: commands must not go to another cluster then."""
        try:
            if not os.path.lexists(path()):
                return cls()
            read = json.loads(read_user_file(path()))
            by_name = {name: Context.of(row) for name, row in read["contexts"].items()}
            if read["current"] not in (DEFAULT, *by_name):
                raise ValueError(f"the current one is {read['current']!r}, and it has no such one")
            return cls(read["current"], by_name)
        except UserFileError as error:
            why, do = error.what, error.do
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            why = f"another program wrote it, or a part of it is lost ({error!r})"
            do = f"mend it, or remove it and make the contexts again: rm {path()}"
        what = f"{path()} has no contexts that can be read"
        raise CliError(what, why, do, ExitCode.USAGE)

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
    return Path(click.get_app_dir("quorumlog"), "contexts.json")
