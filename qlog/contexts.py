"""The contexts of a user: names of clusters, with the addresses and TLS files that go with each.

Owns the file, `quorumlog/contexts.json` in the user's directory of settings. Must not know which
command reads it.
"""

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

import click

from quorumlog.cluster.tls import ClientTls
from quorumlog.command_errors import CliError

DEFAULT: Final = "default"
"""The context without a choice: the local cluster, else the default address."""


@dataclass(frozen=True, slots=True)
class Context:
    """A cluster: HOST:PORT,... and absolute paths of PEM files, empty where not given."""

    server: str
    tls: ClientTls


@dataclass(slots=True)
class Contexts:
    """All contexts by name, and which of them commands use."""

    current: str = DEFAULT
    by_name: dict[str, Context] = field(default_factory=dict)

    @classmethod
    def load(cls) -> "Contexts":
        """Read the file; without one there are none. Raises CliError for another content."""
        try:
            read = json.loads(path().read_text("utf-8"))
            by_name = {
                name: Context(str(one["server"]), ClientTls(**one["tls"]))
                for name, one in read["contexts"].items()
            }
            return cls(str(read["current"]), by_name)
        except FileNotFoundError:
            return cls()
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CliError(
                f"{path()} has no contexts that can be read",
                f"another program wrote it, or a part of it is lost ({error!r})",
                f"mend it, or remove it and make the contexts again: rm {path()}",
            ) from error

    def save(self) -> None:
        """Replace the file at once. Only the user may read it: it names where private keys are."""
        rows = {
            name: {**asdict(one), "tls": one.tls._asdict()} for name, one in self.by_name.items()
        }
        path().parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = path().with_suffix(f".{os.getpid()}")
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as stream:
            json.dump({"current": self.current, "contexts": rows}, stream, indent=2)
        new.replace(path())

    def chosen(self) -> Context | None:
        """Return the context that commands use; None: the default one."""
        return self.by_name.get(self.current)


def path() -> Path:
    """Return where the file is: below XDG_CONFIG_HOME, or its like on other systems."""
    return Path(click.get_app_dir("quorumlog"), "contexts.json")
