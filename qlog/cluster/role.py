"""`qlog role` and `qlog acl`: what roles allow and deny, and which rule decides.

Owns the options and the printing; the work is the admin client's.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from qlog import names
from qlog.command_decorators import Printout, TableRows, cluster_command, confirmed
from qlog.output import Row
from qlog.parsed import Parsed
from quorumlog.command_errors import CliError, ExitCode
from quorumlog.errors import PermissionDeniedError

if TYPE_CHECKING:
    from quorumlog.admin.types import Role
    from quorumlog.client import Client

_ACTIONS = ("Pub", "Sub", "Create", "Update", "Delete", "Get", "List")


def _parse_resource(text: str) -> str:
    """Raises ValueError; the rest of the name is for the node to check."""
    if not text.lower().startswith(("cluster:", "topic:", "group:")):
        raise ValueError(f"{text!r} is no resource; use Cluster:NAME, Topic:NAME or Group:NAME")
    return text


def _parse_rule(text: str) -> tuple[str, tuple[str, ...]]:
    """Read 'Topic:shop-* Pub,Sub'. Raises ValueError."""
    resource, _, listed = text.strip().partition(" ")
    actions = tuple(action.strip() for action in listed.split(","))
    if not {action.lower() for action in actions} <= {action.lower() for action in _ACTIONS}:
        rule = f"'Topic:shop-* Pub,Sub', with actions of {', '.join(_ACTIONS)}"
        raise ValueError(f"{text!r} is no rule; use {rule}")
    return _parse_resource(resource), actions


def _parse_action(text: str) -> str:
    """Raises ValueError."""
    for action in _ACTIONS:
        if action.lower() == text.lower():
            return action
    raise ValueError(f"{text!r} is no action; use {', '.join(_ACTIONS)}")


_complete = names.of(lambda _context: _ACTIONS)
_ACTION = Parsed("action", _parse_action)
_RULE = Parsed("rule", _parse_rule)
_RESOURCE = Parsed("resource", _parse_resource)


@click.group()
def role() -> None:
    """List, make and delete roles.

    A role is rules. A rule allows or denies actions (Pub, Sub, Create, Update, Delete, Get, List)
    on a resource: Cluster, Topic or Group with a name, with * at its end all names that begin so.
    One rule that denies goes before all that allow, and what no rule allows is refused.
    """


def _row(role: "Role") -> Row:
    rules = [str(rule) for rule in role.rules]
    row = {"role": role.name, "is_ready_made": role.is_ready_made, "rules": rules}
    return row | {"differs": role.differs}


def _printout(roles: Sequence["Role"], value: object) -> Printout:
    """Show a rule a line; other forms have the value."""
    columns = ("role", "rule", *(["differs"] if any(one.differs for one in roles) else []))
    table = [
        dict(zip(columns, (one.name, str(rule), ", ".join(one.differs)), strict=False))
        if rule is one.rules[0]
        else {"role": "", "rule": str(rule)}
        for one in roles
        for rule in one.rules
    ]
    return Printout(value, table=[TableRows(columns, table)])


@role.command("list")
@cluster_command
async def list_roles(client: "Client") -> Printout:
    """List all roles with their rules.

    {} stands for the PREFIX of a role that is given as ROLE:PREFIX. The four that are ready-made
    cannot be changed.

    \b
    Keys of -o json:
      role, is_ready_made, rules (texts)
      differs (broker groups that have other rules under it, or none)

    \b
    Examples:
      qlog role list
    """
    roles = await client.admin.roles()
    return _printout(roles, [_row(one) for one in roles])


@role.command()
@click.argument("name", metavar="ROLE")
@click.option(
    "--allow", type=_RULE, multiple=True, metavar="RULE", help="'RESOURCE ACTION,...'. Repeatable."
)
@click.option(
    "--deny", type=_RULE, multiple=True, metavar="RULE", help="Goes before all that allow."
)
@click.option("--exist-ok", is_flag=True, help="Give a role that is there these rules instead.")
@cluster_command
async def create(
    client: "Client",
    name: str,
    allow: Sequence[tuple[str, tuple[str, ...]]],
    deny: Sequence[tuple[str, tuple[str, ...]]],
    exist_ok: bool,
) -> Printout:
    """Make a role.

    \b
    Keys of -o json:
      role, is_ready_made, rules (texts)
      differs (broker groups that have other rules under it, or none)

    \b
    Examples:
      qlog role create shop --allow 'Topic:shop-* Pub' --allow 'Group:shop Sub'
      qlog role create team --allow 'Topic:{}* Pub,Get' --deny 'Topic:{}-pay Pub'
    """
    from quorumlog.admin.types import Rule

    if not exist_ok and any(one.name == name for one in await client.admin.roles()):
        raise CliError(
            f"there is a role {name!r} already",
            "its users would have other rights at once",
            "choose another name, or replace its rules with --exist-ok",
            ExitCode.REFUSED,
        )
    rules = [Rule(*one) for one in allow] + [Rule(*one, deny=True) for one in deny]
    made = await client.admin.put_role(name, rules)
    return _printout([made], _row(made))


@role.command()
@click.argument("name", metavar="ROLE", shell_complete=names.roles)
@confirmed("Delete role {name}?")
@cluster_command
async def delete(client: "Client", name: str) -> Row:
    """Delete a role. Refused while a user has it.

    \b
    Keys of -o json:
      role, deleted

    \b
    Examples:
      qlog role delete shop --yes
    """
    await client.admin.delete_role(name)
    return {"role": name, "deleted": True}


@click.group()
def acl() -> None:
    """Say what a user may do, and which rule decides."""


@acl.command()
@click.argument("user", metavar="USER", shell_complete=names.users)
@click.argument("action", metavar="ACTION", type=_ACTION, shell_complete=_complete)
@click.argument("resource", metavar="RESOURCE", type=_RESOURCE)
@cluster_command
async def explain(client: "Client", user: str, action: str, resource: str) -> Printout:
    """Say whether a user may do something, and which rule of which role decides.

    Ends with 0 if it is allowed and with 1 if not.

    \b
    Keys of -o json:
      user, action, resource, is_allowed, role, rule, roles (all of the user),
      needs (what rules have to allow in its place, as of topics of a group)

    \b
    Examples:
      qlog acl explain shop Pub Topic:shop-orders
      qlog acl explain shop Sub Group:billing -o json
      qlog acl explain shop Get Cluster:nodes
    """
    said = await client.admin.explain_access(user, action, resource)
    rule = None if said.rule is None else str(said.rule)
    try:
        of_user = [one for one in await client.admin.users() if one.name == user]
        roles, is_disabled = of_user[0].roles, of_user[0].is_disabled
    except PermissionDeniedError:  # It explains itself, so it is not disabled.
        roles, is_disabled = (await client.admin.who_am_i()).roles, False
    reason = f"no rule of its roles ({', '.join(roles)}) allows it" if roles else "it has no role"
    reason = "it is disabled" if is_disabled else reason
    reason = reason if rule is None else f"{rule} of role {said.role}"
    do = f"an admin changes that: 'qlog user set {user} "
    do += "--enable'" if is_disabled else "--role' names all its roles"
    may = "may" if said.is_allowed else "may not"
    value: Row = {
        "user": user,
        "action": action,
        "resource": resource,
        "is_allowed": said.is_allowed,
        "role": said.role or None,
        "rule": rule,
        "roles": roles,
        "needs": said.needs or None,
    }
    needs = f", which needs {said.needs}" if said.needs else ""
    sentence = f"user {user} {may} {action} on {resource}{needs}: {reason}"
    code = ExitCode.OK if said.is_allowed else ExitCode.FINDINGS
    lines = [sentence] if said.is_allowed else [sentence, do]
    return Printout(value, table=[{}], lines=lines, exit_code=code)
