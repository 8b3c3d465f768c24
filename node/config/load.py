"""Reads settings from flags, environment and a TOML file, and reports all problems at once.

Owns the precedence (flag, then environment, then file, then default), the origin of each value, and
the suggestions. Must not know what a setting means: `node.config.settings` does.
"""

import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from node.config.conflicts import conflicts
from node.config.settings import ENVIRONMENT_PREFIX, Settings
from node.config.types import Peer
from node.config.users import KEY_VARIABLE
from quorumlog.user_files import UserFileError, read_user_file

FILE_VARIABLE: Final = f"{ENVIRONMENT_PREFIX}CONFIG"
OTHER_VARIABLES: Final = frozenset(
    {
        *("CONFIG", "FAILPOINTS", "SERVER", "TRANSPORT", "LOCAL_DIR", "CACHE"),
        *("TOKEN", "TOKEN_FILE", KEY_VARIABLE.removeprefix(ENVIRONMENT_PREFIX)),
    }
)
"""Variables with our prefix that are not settings: the file, fault injection, the command line, the
place of installed packages, the key of users. They may be exported for all processes."""
OTHER_PREFIXES: Final = (f"{ENVIRONMENT_PREFIX}CLIENT_", f"{ENVIRONMENT_PREFIX}TEST_")
"""Prefixes of the variables of clients and tests, which a node ignores."""
_OF_SERVICE: Final = re.compile(
    rf"{ENVIRONMENT_PREFIX}(?:\w+_)?"
    r"(?:(?:SERVICE_HOST|SERVICE_PORT\w*|PORT_\d+_(?:TCP|UDP|SCTP)\w*)=|PORT=(?:tcp|udp|sctp)://)"
)
"""Begins what Kubernetes tells each pod of a Service `quorumlog` or `quorumlog-...`: NAME=value."""
_VALUE_LENGTH_MAX: Final = 60
_NOT_SET: Final = "is not set"


class ConfigProblem(NamedTuple):
    """One problem with one setting."""

    key: str
    value: str
    """The value as written; empty if it was not."""
    origin: str
    what: str
    suggestion: str

    def __str__(self) -> str:
        value = f" = {self.value}" if self.value else ""
        return f"{self.key}{value} ({self.origin}): {self.what}; {self.suggestion}"


class ConfigError(Exception):
    """Settings are unusable; nothing was started. `problems` lists everything that is wrong."""

    code = "config.invalid"
    retryable = False
    outcome = "not_applied"

    def __init__(self, problems: tuple[ConfigProblem, ...]) -> None:
        super().__init__(problems)
        self.problems = problems

    def __str__(self) -> str:
        count = len(self.problems)
        head = f"{count} setting{' is' if count == 1 else 's are'} wrong"
        return "\n  ".join([head, *map(str, self.problems)])


@dataclass(frozen=True, slots=True)
class Loaded:
    """Settings, and the origin of each by name: a flag, a variable, a line of a file, default."""

    settings: Settings
    origins: Mapping[str, str]


def load(
    file: str | os.PathLike[str] | None = None,
    flags: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Loaded:
    """Read and check all settings. Raises ConfigError with everything that is wrong.

    `flags` maps a setting's name to its text; None means not given. Without `file` the variable
    QUORUMLOG_CONFIG names the file; without both no file is read.
    """
    environment = os.environ if environment is None else environment
    problems: list[ConfigProblem] = []
    file = file or environment.get(FILE_VARIABLE) or None
    layers = [] if file is None else [_from_file(Path(file), problems)]
    is_unread = bool(problems)
    layers.append(_from_environment(environment, problems))
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    names = {name: f"no-{name}" if value is False else name for name, value in given.items()}
    layers.append(
        (given, {name: f"flag --{flag.replace('_', '-')}" for name, flag in names.items()})
    )
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for layer_values, layer_origins in layers:
        values |= layer_values
        origins |= layer_origins
    for key in [key for key in values if key not in Settings.model_fields]:
        del values[key]
        problems.append(_unknown(key, origins.pop(key), Settings.model_fields))
    settings, bad = _validated(values, origins, problems)
    if is_unread:  # What the file may set is not missing.
        problems = [one for one in problems if one.what != _NOT_SET]
    for conflict in [] if settings is None else conflicts(settings):
        tops = [key.partition(".")[0] for key in conflict.keys]
        if bad.isdisjoint(tops):
            where = dict.fromkeys(origins.get(top, "default") for top in tops)
            key, origin = " + ".join(conflict.keys), ", ".join(where)
            problems.append(ConfigProblem(key, "", origin, conflict.what, conflict.suggestion))
    if problems:
        raise ConfigError(tuple(problems))
    assert settings is not None, "no settings although nothing is wrong"
    complete = {name: origins.get(name, "default") for name in Settings.model_fields}
    return Loaded(settings, complete)


# --- Where values come from ---

_Layer = tuple[dict[str, Any], dict[str, str]]


def _from_file(path: Path, problems: list[ConfigProblem]) -> _Layer:
    try:
        # Bytes, since reading as text would turn a lone carriage return, which TOML forbids, into
        # an end of a line. Editors of Windows write a mark of UTF-8 before the text.
        text = read_user_file(path).decode("utf-8-sig")
        values = tomllib.loads(text)
    except (UserFileError, ValueError, RecursionError) as error:
        do = "correct it; see docs/configuration.md"
        match error:
            case UserFileError():
                what, do = error.what, error.do
            case tomllib.TOMLDecodeError():
                what = str(error)
            case UnicodeDecodeError():
                what = f"no UTF-8 at byte {error.start}"
            case RecursionError():
                what = "nested too deep"
            case _:  # Of `int`, which names a function of Python.
                what = "a whole number has more than 4,300 digits"
        problems.append(ConfigProblem("config", "", str(path), what, do))
        return {}, {}
    origins = {key: f"{path}{_line(text, key)}" for key in values}
    for key, value in values.items():
        for name, table in value.items() if isinstance(value, dict) else ():
            for inner in table if isinstance(table, dict) else ():
                if line := _line(text, inner, f"{key}.{name}"):
                    origins[f"{key}.{name}.{inner}"] = f"{path}{line}"
    return values, origins


def _line(text: str, key: str, table: str = "") -> str:
    """Return `:12` for the line that sets a key, in a table of that name; empty if either is
    written in an unusual way."""
    mark = re.compile(rf"\s*(?:\[\s*)?[\"']?{re.escape(key)}[\"']?\s*[=.\]]")
    head = re.compile(rf"\s*\[\s*{re.escape(table)}\s*\]")
    is_there = not table
    for number, line in enumerate(text.splitlines(), 1):
        if is_there and mark.match(line):
            return f":{number}"
        is_there = is_there or bool(head.match(line))
    return ""


def _from_environment(environment: Mapping[str, str], problems: list[ConfigProblem]) -> _Layer:
    # The case of a name does not count, and an empty variable says nothing.
    texts = {variable.lower(): text for variable, text in environment.items() if text}
    variables = {f"{ENVIRONMENT_PREFIX}{name.upper()}": name for name in Settings.model_fields}
    for variable in sorted(environment):
        is_ours = variable.startswith(ENVIRONMENT_PREFIX)
        if not is_ours or variable in variables or variable.startswith(OTHER_PREFIXES):
            continue
        if variable.removeprefix(ENVIRONMENT_PREFIX) in OTHER_VARIABLES:
            continue
        if _OF_SERVICE.match(f"{variable}={environment[variable]}"):
            continue
        problems.append(_unknown(variable, "environment", variables))
    given = {name: variable for variable, name in variables.items() if variable.lower() in texts}
    values = {name: texts[variable.lower()] for name, variable in given.items()}
    return values, {name: f"environment {variable}" for name, variable in given.items()}


# --- Problems ---


def _validated(
    values: dict[str, Any], origins: Mapping[str, str], problems: list[ConfigProblem]
) -> tuple[Settings | None, set[str]]:
    """Check each value alone; return the settings without the wrong values, and their names."""
    try:
        return Settings.model_validate(values), set()
    except ValidationError as error:
        details = error.errors(include_url=False)
    for detail in details:
        problems.append(_of_detail(detail, origins))
    bad = {str(detail["loc"][0]) for detail in details}
    try:
        # With defaults for the wrong values, so that the rules between the others are checked too.
        rest = {key: value for key, value in values.items() if key not in bad}
        return Settings.model_validate(rest), bad
    except ValidationError:
        return None, bad


def _of_detail(detail: ErrorDetails, origins: Mapping[str, str]) -> ConfigProblem:
    location = [part for part in detail["loc"] if part != "[key]"]
    key = ".".join(map(str, location))
    origin = origins.get(key) or origins.get(str(location[0]), "nowhere")
    if detail["type"] == "extra_forbidden":
        if location[-1] in Settings.model_fields:
            what, do = (
                f"it stands under [{key.rpartition('.')[0]}]",
                "move it above the first table",
            )
            return ConfigProblem(key, _written(detail["input"]), origin, what, do)
        names = Peer.model_fields
        close = difflib.get_close_matches(str(location[-1]), names, n=1)
        do = f"did you mean {close[0]}?" if close else f"known are {', '.join(names)}"
        return ConfigProblem(key, _written(detail["input"]), origin, "unknown key", do)
    if detail["type"] == "missing":
        what = _NOT_SET
        if len(location) > 1:
            return ConfigProblem(key, "", origin, what, "add it")
        flag = f"--{key.replace('_', '-')}"
        do = f"add it to the file, or use {flag} or {ENVIRONMENT_PREFIX}{key.upper()}"
        return ConfigProblem(key, "", origin, what, do)
    text = detail["msg"].removeprefix("Value error, ")
    what, _, do = text.partition("; ")
    if not do and what.startswith("use "):
        what, do = "cannot be read", what
    return ConfigProblem(key, _written(detail["input"]), origin, what, do or _hint(detail))


def _hint(detail: ErrorDetails) -> str:
    """Return what to write instead, for the checks of pydantic itself."""
    context = detail.get("ctx", {})
    match detail["type"]:
        case "literal_error":
            allowed = re.findall(r"'([^']*)'", str(context.get("expected")))
            close = difflib.get_close_matches(str(detail["input"]), allowed, n=1)
            return f"did you mean {close[0]}?" if close else f"use {' or '.join(allowed)}"
        case "bool_parsing" | "bool_type":
            return "use true or false"
        case "int_parsing_size":
            return "use a smaller number; docs/configuration.md has the range"
        case "string_pattern_mismatch":
            return "use 1 to 64 of letters, digits, '.', '_' and '-', the first no sign"
        case _:
            return "see docs/configuration.md"


_GONE: Final = {
    "rocketmq_keys_file": (
        "access keys are those of users",
        "set users = on, and make each key's user with 'qlog user create NAME --role "
        "producer-consumer:PREFIX --access-key KEY', or all with 'qlog user import-keys FILE'",
    )
}
"""Settings of earlier versions: why there are none, and what to do."""


def _unknown(key: str, origin: str, known: Iterable[str]) -> ConfigProblem:
    # Without the value: a secret under a wrong name would stand in the log.
    gone = _GONE.get(key.removeprefix(ENVIRONMENT_PREFIX).lower())
    if gone is not None:
        return ConfigProblem(key, "", origin, *gone)
    close = difflib.get_close_matches(key, list(known), n=1, cutoff=0.55)
    do = f"did you mean {close[0]}?" if close else "remove it; docs/configuration.md has all"
    return ConfigProblem(key, "", origin, "unknown key", do)


def _written(value: object) -> str:
    text = str(value)
    return text if len(text) <= _VALUE_LENGTH_MAX else f"{text[:_VALUE_LENGTH_MAX]}..."
