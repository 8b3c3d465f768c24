"""`qlog user`: users, their roles and their credentials.

Owns the options, the printing, and the files that tokens and secrets are written to; the work is
the admin client's. What is secret goes to a file that only its owner may read, or in `init` alone
to stdout, and never into a result.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from secrets import token_urlsafe
from typing import TYPE_CHECKING, Any, TypeVar

import click

from qlog import names
from qlog.broker_groups import warn_away
from qlog.command_decorators import Printout, cluster_command, confirmed, printed
from qlog.connection import ask, server_option, warn_readable
from qlog.message_rows import time_text
from qlog.output import Row
from qlog.parsed import Parsed, parse_duration, parse_size
from quorumlog.command_errors import CliError, ExitCode, nearest
from quorumlog.errors import Outcome, QuorumlogError
from quorumlog.user_files import UserFileError, read_keys, read_user_text
from quorumlog.user_tokens import SECRET_SIZE_BYTES_MIN, digest_of, first_user_text, new_token

if TYPE_CHECKING:
    from quorumlog.admin.types import NewCredential, User
    from quorumlog.client import Client

_Function = TypeVar("_Function", bound=Callable[..., Any])
_LIFE_MIN, _LIFE_MAX = "1s", "36500d"
_RATES = ("bytes_per_second", "messages_per_second", "requests_per_second", "connections")


def _parse_life(text: str) -> int:
    """Return the milliseconds of a life of credentials. Raises ValueError."""
    lives_ms = parse_duration(text)
    if not parse_duration(_LIFE_MIN) <= lives_ms <= parse_duration(_LIFE_MAX):
        raise ValueError(f"{text!r} is out of range; give {_LIFE_MIN} to {_LIFE_MAX}")
    return lives_ms


_name_argument = click.argument("name", metavar="USER", shell_complete=names.users)
_expires_option = click.option(
    "--expires",
    "lives_ms",
    metavar="DURATION",
    type=Parsed("duration", _parse_life),
    help="Let it end after this time: 12h, 90d.  [default: never]",
)


def _roles_option(help_text: str) -> Callable[[_Function], _Function]:
    return click.option(
        "--role", "roles", multiple=True, metavar="ROLE[:PREFIX]", help=f"{help_text} Repeatable."
    )


def _token_file_option(*, is_required: bool = False) -> Callable[[_Function], _Function]:
    return click.option(
        "--token-file",
        "file",
        metavar="FILE",
        type=click.Path(path_type=Path),
        required=is_required,
        help="Make a token, and write it to this new file (mode 600).",
    )


def _secret_file_option(*, is_required: bool = False) -> Callable[[_Function], _Function]:
    return click.option(
        "--secret-file",
        metavar="FILE",
        type=click.Path(path_type=Path),
        required=is_required,
        help="File with the secret; if there is none, a secret is made and written there (mode "
        "600).",
    )


@click.group()
def user() -> None:
    """Make users, and give them roles and credentials.

    A user has roles (qlog role list), which say what it may do, and credentials, which prove that a
    caller is that user: tokens, access keys of RocketMQ's clients, names of client certificates.
    Name your own token in front: qlog --token-file FILE user ...
    """


# Files of tokens and secrets.


def _write_new(path: Path, text: str) -> None:
    """Write a file for its owner alone. Raises CliError if it is there."""
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
    except FileExistsError:
        raise CliError(
            f"{path} is there already",
            "it would be overwritten, and what it holds be lost",
            "name a new file; your own token is named in front: qlog --token-file FILE user ...",
            ExitCode.USAGE,
        ) from None


@contextmanager
def _written(path: Path | None, text: str) -> Iterator[None]:
    """Write a file for the time of a change; if the change was refused, take it away again."""
    if path is None:
        yield
        return
    _write_new(path, f"{text}\n")
    try:
        yield
    except BaseException as error:
        if not isinstance(error, QuorumlogError) or error.outcome is not Outcome.UNKNOWN:
            path.unlink()
        raise


def _secret_of(path: Path) -> tuple[str, Path | None]:
    """Return the secret of a file; if there is none a new secret, and where to write it."""
    if not path.exists():
        return token_urlsafe(32), path
    try:
        secret = read_user_text(path).strip()
        if not secret:
            raise UserFileError("it is empty", "write the secret into it")
    except UserFileError as error:
        what = f"the secret cannot be read from {path}"
        raise CliError(what, error.what, error.do, ExitCode.USAGE) from None
    return secret, None


def _end(lives_ms: int | None) -> int:
    return 0 if lives_ms is None else int(time.time() * 1000) + lives_ms


def _token(token: str, lives_ms: int | None) -> "NewCredential":
    """Return the credential of a token; its id is the beginning of its digest."""
    from quorumlog.admin.types import NewCredential

    name = f"token-{digest_of(token).hex()[:8]}"
    return NewCredential(name, token=token, expires_unix_ms=_end(lives_ms))


def _key(access_key: str, secret: str, lives_ms: int | None) -> "NewCredential":
    from quorumlog.admin.types import NewCredential

    return NewCredential(access_key, secret=secret, expires_unix_ms=_end(lives_ms))


def _certificate(certificate: str, lives_ms: int | None = None) -> "NewCredential":
    from quorumlog.admin.types import NewCredential

    name = f"certificate-{sha256(certificate.encode()).hexdigest()[:8]}"
    return NewCredential(name, certificate=certificate, expires_unix_ms=_end(lives_ms))


# Printing.


def _row(user: "User") -> dict[str, Any]:
    return {
        "user": user.name,
        "roles": user.roles,
        "is_disabled": user.is_disabled,
        "credentials": [
            {
                "id": one.id,
                "kind": one.kind,
                "certificate": one.certificate or None,
                "expires_unix_ms": one.expires_unix_ms or None,
            }
            for one in user.credentials
        ],
        **{name: getattr(user.rates, name) or None for name in _RATES},
        "differs": user.differs,
    }


def _printout(user: "User") -> Printout:
    """Show a user; a table has no rates that are not set, and the ends as times."""
    warn_away(user.away)
    row = _row(user)
    omitted = [key for key in (*_RATES, "differs") if not row[key]]
    shown = {key: value for key, value in row.items() if key not in omitted}
    shown["credentials"] = [
        {
            "id": one["id"],
            "kind": one["kind"],
            "certificate": one["certificate"],
            "expires": _end_text(one["expires_unix_ms"]),
        }
        for one in row["credentials"]
    ]
    return Printout(row, table=[shown])


def _end_text(unix_ms: int) -> str | None:
    if not unix_ms:
        return None
    return ("ended " if _has_ended(unix_ms) else "") + time_text(unix_ms)


def _has_ended(unix_ms: int) -> bool:
    return 0 < unix_ms <= time.time() * 1000


# The first user.


@user.command()
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--name", default="admin", show_default=True, metavar="USER", help="Its name.")
@click.option(
    "--token-file",
    "token_file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write the token to this new file (mode 600).  [default: stdout, this once]",
)
def init(file: Path, name: str, token_file: Path | None) -> int:
    """Write the file of the first user, which has the role admin.

    Name FILE in the setting users_file of each node before users are switched on. It holds the
    digest of a token, and not the token. No file is overwritten.

    \b
    Examples:
      qlog user init first.json --token-file admin.token
      qlog user init first.json --name alice > alice.token
    """
    token = new_token()
    with _written(token_file, token):
        _write_new(file, first_user_text(name, digest_of(token)))
    click.echo(f"{file}: the first user is {name}; name it in users_file of each node", err=True)
    if token_file is None:
        click.echo("the token, which is shown this once:", err=True)
        click.echo(token)
    else:
        click.echo(f"{token_file}: its token; use it: qlog --token-file {token_file}", err=True)
    return ExitCode.OK


# Users.


@user.command()
@click.argument("name", metavar="USER")
@_roles_option("What it may do.")
@_token_file_option()
@_expires_option
@click.option("--access-key", metavar="KEY", help="For RocketMQ's clients; with --secret-file.")
@_secret_file_option()
@click.option(
    "--certificate",
    "certificates",
    multiple=True,
    metavar="CN=NAME",
    help="Name that its client certificate shows, or DNS:, URI:, EMAIL:NAME. Repeatable.",
)
@server_option
@printed
def create(
    name: str,
    roles: Sequence[str],
    file: Path | None,
    lives_ms: int | None,
    access_key: str | None,
    secret_file: Path | None,
    certificates: Sequence[str],
    server: str | None,
) -> Printout:
    """Make a user, and write its new token to a file.

    --expires is for all credentials that are given here.

    \b
    Keys of -o json:
      user, roles, is_disabled, credentials, bytes_per_second,
      messages_per_second, requests_per_second, connections
      differs (broker groups that have another user of this name, or none)
      credentials: id, kind, certificate, expires_unix_ms

    \b
    Examples:
      qlog user create shop --role producer-consumer:shop- --token-file shop.token
      qlog user create eve --role reader --token-file eve.token --expires 90d
      qlog user create erp --role reader --access-key E1 --secret-file e1.secret
      qlog user create web --role reader --certificate CN=web.example
    """
    if (access_key is None) is not (secret_file is None):
        raise click.UsageError("--access-key and --secret-file go together")
    token = new_token()
    added = [_certificate(one, lives_ms) for one in certificates]
    secret, new_secret_file = ("", None) if secret_file is None else _secret_of(secret_file)
    if access_key is not None:
        added.append(_key(access_key, secret, lives_ms))
    if file is not None:
        added.append(_token(token, lives_ms))
    with _written(file, token), _written(new_secret_file, secret):
        made = ask(
            server,
            lambda client: client.admin.put_user(name, roles=roles, add=added, must_be_new=True),
        )
    lines = (
        []
        if made.credentials
        else [
            f"{name} cannot log in yet: it has no credential",
            f"give it one: qlog user token add {name} --token-file FILE",
        ]
    )
    return replace(_printout(made), lines=lines)


@user.command("set")
@_name_argument
@_roles_option("Its roles from now on; others are taken away.")
@click.option("--no-roles", is_flag=True, help="Take all roles away.")
@click.option("--disable/--enable", "is_disabled", default=None, help="Refuse its calls, or not.")
@click.option(
    "--bytes-per-second",
    metavar="SIZE",
    type=Parsed("size", parse_size),
    help="At each node, as 10MiB; 0: no limit.",
)
@click.option("--messages-per-second", type=click.IntRange(min=0), help="The same.")
@click.option("--requests-per-second", type=click.IntRange(min=0), help="The same.")
@click.option("--connections", type=click.IntRange(min=0), help="The same.")
@cluster_command
async def set_user(
    client: "Client",
    name: str,
    roles: Sequence[str],
    no_roles: bool,
    is_disabled: bool | None,
    **rates: int | None,
) -> Printout:
    """Change a user; what is not named stays. Counts at once, for calls under way too.

    \b
    Keys of -o json:
      user, roles, is_disabled, credentials, bytes_per_second,
      messages_per_second, requests_per_second, connections, differs
      credentials: id, kind, certificate, expires_unix_ms

    \b
    Examples:
      qlog user set shop --role producer-consumer:shop- --role reader
      qlog user set shop --disable
      qlog user set shop --messages-per-second 1000
    """
    given = {key: value for key, value in rates.items() if value is not None}
    if not (roles or no_roles or given) and is_disabled is None:
        raise click.UsageError("nothing to change; name a role, --disable or a limit")
    # Who may not list users can change all but a part of the limits.
    old = await _user(client, name) if given else None
    changed = await client.admin.put_user(
        name,
        roles=roles if roles or no_roles else None,
        is_disabled=is_disabled,
        rates=None if old is None else replace(old.rates, **given),
        must_exist=True,
    )
    return _printout(changed)


async def _user(client: "Client", name: str) -> "User":
    found = await client.admin.users()
    for one in found:
        if one.name == name:
            return one
    raise CliError(
        f"there is no user {name!r}",
        f"there are {len(found)} others",
        nearest(name, [one.name for one in found]) + "check the name: qlog user list",
        ExitCode.NOT_FOUND,
    )


@user.command()
@_name_argument
@confirmed("Delete user {name}? Its calls under way end.")
@cluster_command
async def delete(client: "Client", name: str) -> Row:
    """Delete a user with its credentials. Its calls under way end.

    \b
    Keys of -o json:
      user, deleted

    \b
    Examples:
      qlog user delete shop --yes
    """
    await client.admin.delete_user(name)
    return {"user": name, "deleted": True}


@user.command("list")
@cluster_command
async def list_users(client: "Client") -> Printout:
    """List all users.

    \b
    Keys of -o json:
      user, roles, is_disabled, credentials (count), ended (of them), differs

    \b
    Examples:
      qlog user list
      qlog user list -o json | jq -r '.[] | select(.is_disabled).user'
    """
    users = await client.admin.users()
    warn_away(users[0].away if users else ())
    rows = [
        {
            "user": one.name,
            "roles": one.roles,
            "is_disabled": one.is_disabled,
            "credentials": len(one.credentials),
            "ended": sum(_has_ended(each.expires_unix_ms) for each in one.credentials),
            "differs": one.differs,
        }
        for one in users
    ]
    omitted = [key for key in ("ended", "differs") if not any(row[key] for row in rows)]
    return Printout(rows, omitted=omitted)


@user.command()
@_name_argument
@cluster_command
async def describe(client: "Client", name: str) -> Printout:
    """Show a user: its roles, its limits, and its credentials without what is secret.

    \b
    Keys of -o json:
      user, roles, is_disabled, credentials, bytes_per_second,
      messages_per_second, requests_per_second, connections, differs
      credentials: id, kind, certificate, expires_unix_ms

    \b
    Examples:
      qlog user describe shop
    """
    return _printout(await _user(client, name))


@user.command()
@cluster_command
async def whoami(client: "Client") -> Printout:
    """Show the user that your credential belongs to.

    mode is the setting users of the node that answers.

    \b
    Keys of -o json:
      name, roles, mode

    \b
    Examples:
      qlog user whoami
      qlog --token-file shop.token user whoami
    """
    said = await client.admin.who_am_i()
    none = "users are off at the node that answers: no caller is a user, and all may do all"
    is_off = said.mode == "off"
    return Printout(said, lines=[none] * is_off, omitted=("name", "roles") if is_off else ())


# Credentials.


@user.group()
def token() -> None:
    """Add and remove tokens of a user."""


@user.group()
def key() -> None:
    """Add and remove access keys of a user, for clients of RocketMQ."""


@user.group()
def certificate() -> None:
    """Add and remove names of client certificates of a user."""


async def _add(client: "Client", name: str, added: "NewCredential") -> Printout:
    return _printout(await client.admin.put_user(name, add=[added], must_exist=True))


@token.command("add")
@_name_argument
@_token_file_option(is_required=True)
@_expires_option
@server_option
@printed
def add_token(name: str, file: Path, lives_ms: int | None, server: str | None) -> Printout:
    """Make another token of a user, and write it to a file.

    \b
    Keys of -o json:
      user, roles, is_disabled, credentials, bytes_per_second,
      messages_per_second, requests_per_second, connections, differs
      credentials: id, kind, certificate, expires_unix_ms

    \b
    Examples:
      qlog user token add shop --token-file shop-2.token --expires 90d
    """
    made = new_token()
    with _written(file, made):
        return ask(server, lambda client: _add(client, name, _token(made, lives_ms)))


@key.command("add")
@_name_argument
@click.argument("access_key", metavar="KEY")
@_secret_file_option(is_required=True)
@_expires_option
@server_option
@printed
def add_key(
    name: str, access_key: str, secret_file: Path, lives_ms: int | None, server: str | None
) -> Printout:
    """Give a user an access key.

    The nodes keep its secret sealed with the key of users_key_file.

    \b
    Keys of -o json:
      user, roles, is_disabled, credentials, bytes_per_second,
      messages_per_second, requests_per_second, connections, differs
      credentials: id, kind, certificate, expires_unix_ms

    \b
    Examples:
      qlog user key add shop SHOP1 --secret-file shop.secret
    """
    secret, new_file = _secret_of(secret_file)
    with _written(new_file, secret):
        added = _key(access_key, secret, lives_ms)
        return ask(server, lambda client: _add(client, name, added))


@certificate.command("add")
@_name_argument
@click.argument("shown", metavar="CN=NAME")
@cluster_command
async def add_certificate(client: "Client", name: str, shown: str) -> Printout:
    """Let client certificates with a name be of a user: CN=, DNS:, URI: or EMAIL:NAME.

    \b
    Keys of -o json:
      user, roles, is_disabled, credentials, bytes_per_second,
      messages_per_second, requests_per_second, connections, differs
      credentials: id, kind, certificate, expires_unix_ms

    \b
    Examples:
      qlog user certificate add shop CN=shop.example
      qlog user certificate add shop URI:spiffe://example/shop
    """
    return await _add(client, name, _certificate(shown))


def _remove_command(group: click.Group, kind: str, metavar: str, example: str) -> None:
    """Add the command `remove` for one kind of credentials."""

    async def remove(client: "Client", name: str, credential: str) -> Printout:
        found = await _user(client, name)
        has = {one.id: one.certificate or one.id for one in found.credentials if one.kind == kind}
        ids = [one for one, name in has.items() if credential in (one, name)]
        if not ids:
            raise CliError(
                f"user {name!r} has no {kind.replace('_', ' ')} {credential!r}",
                f"it has {', '.join(has.values()) or 'none'}",
                f"see them: qlog user describe {name}",
                ExitCode.NOT_FOUND,
            )
        left = await client.admin.put_user(name, remove=ids)
        none = f"user {name!r} has no credential now that has not ended: no caller can be it"
        is_out = all(_has_ended(one.expires_unix_ms) for one in left.credentials)
        return replace(_printout(left), lines=[none] if is_out else [])

    remove.__doc__ = f"""Take it away from a user. Counts at once, for calls under way too.

    \b
    Keys of -o json:
      user, roles, is_disabled, credentials, bytes_per_second,
      messages_per_second, requests_per_second, connections, differs
      credentials: id, kind, certificate, expires_unix_ms

    \b
    Examples:
      qlog user {group.name} remove shop {example} --yes
    """
    argument = click.argument("credential", metavar=metavar)
    ask_first = confirmed("Take {credential} away from user {name}? Calls under way with it end.")
    group.command("remove")(_name_argument(argument(ask_first(cluster_command(remove)))))


_remove_command(token, "token", "ID", "token-3f2a91c0")
_remove_command(key, "access_key", "KEY", "SHOP1")
_remove_command(certificate, "certificate", "NAME", "CN=shop.example")


@user.command("import-keys")
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@_roles_option("What each of the users may do.")
@click.option("--yes", "is_done", is_flag=True, help="Do it; without, only say what it would do.")
@cluster_command
async def import_keys(
    client: "Client", file: Path, roles: Sequence[str], is_done: bool
) -> Printout:
    """Make a user of each access key of a file, which has `key secret` a line.

    That is the form of rocketmq_keys_file. The user has the name of the key; its roles may be
    changed later. A key that a user has already is left as it is.

    \b
    Keys of -o json:
      user, change (new; or none, and why: it is there, a short secret)

    \b
    Examples:
      qlog user import-keys rocketmq.keys --role producer-consumer:shop-
      qlog user import-keys rocketmq.keys --role producer-consumer:shop- --yes
    """
    try:
        keys = read_keys(file)
        warn_readable(file)
    except UserFileError as error:
        what = f"the keys cannot be read from {file}"
        raise CliError(what, error.what, error.do, ExitCode.USAGE) from None
    if not roles:
        raise click.UsageError("name what they may do: --role ROLE[:PREFIX]")
    users = await client.admin.users()
    there = {one.id for user in users for one in user.credentials if one.kind == "access_key"}
    there |= {user.name for user in users}
    rows = []
    for access_key, secret in keys.items():
        size_bytes, change = len(secret.encode()), "new"
        if access_key in there:
            change = "none: it is there"
        elif size_bytes < SECRET_SIZE_BYTES_MIN:
            change = f"none: its secret has {size_bytes} bytes of {SECRET_SIZE_BYTES_MIN} or more"
        elif is_done:
            added = [_key(access_key, secret, None)]
            await client.admin.put_user(access_key, roles=roles, add=added, must_be_new=True)
        rows.append({"user": access_key, "change": change})
    lines = [] if is_done else ["nothing was changed; run it again with --yes"]
    return Printout(rows, lines=lines)
