"""`onward redis acl`: prints the rules for a Redis user of each role."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence

import typer

from onward.cli.commands import Options, argument, command, flag, option
from onward.cli.terminal import USAGE, console, fail, plain

app = typer.Typer(help="See what Onward needs from a Redis server.", no_args_is_help=True)

OPTIONS: Options = {
    "role": argument("[ROLE]", "server, worker, agent or service; without one, all four.", None),
    "user": option("--user", "The name of the Redis user.", show_default="onward-ROLE"),
    "session": option(
        "--session", "Of an agent: its sessions, as a pattern such as 'bot-*'.", str, "*"
    ),
    "service": option(
        "--service",
        "Of a service: it reads this service's own stream alone; again for each further one.",
        list[str] | None,
    ),
    "prefix": option(
        "--prefix", "What the ledger's keys begin with.", show_default="ONWARD_REDIS_PREFIX"
    ),
    "new_password": flag("--new-password", "Make a password, and print it on stderr."),
}


@app.callback()
def _group() -> None:
    """See what Onward needs from a Redis server."""


@command(app, OPTIONS)
def acl(
    role: str | None,
    user: str | None,
    session: str,
    service: list[str] | None,
    prefix: str | None,
    new_password: bool,
) -> None:
    """Print the rules of a Redis user, a line for each role, as redis-cli reads them.

    A user that exists keeps its password and loses every other right. A new one needs a password:
    --new-password makes one. ACL SAVE keeps the users, if Redis has an aclfile.

    $ onward redis acl
    $ onward redis acl worker --user gpu1 --new-password | redis-cli -u redis://10.0.0.5
    $ onward redis acl agent --user bot --session 'bot-*'
    $ onward redis acl service --user reports --service report
    """
    from onward.cli.serve import read_settings
    from onward.doors.redis_roles import Role, rules

    help = "onward redis acl --help"
    if role is not None and role not in set(Role):
        fail(USAGE, f"there is no role {role}", f"there are {', '.join(Role)}", help)
    if role is None and user is not None:
        fail(USAGE, "cannot print the rules", "--user needs a role: one user has one", help)
    prefix = read_settings().redis_prefix if prefix is None else prefix
    services = service or []
    for name in (user or "", session, prefix, *services):
        if not name.isprintable() or set(name) & set(" ()"):
            fail(USAGE, f"{name!r} cannot stand in a rule", "Redis separates rules by spaces", help)
    for one in Role if role is None else [Role(role)]:
        found = rules(one, prefix=prefix, session=session, services=services)
        print(*_line(user or f"onward-{one}", found, new_password))


def _line(user: str, found: Sequence[str], new_password: bool) -> Sequence[str]:
    line = ["ACL", "SETUSER", user, *found]
    if new_password:
        password = secrets.token_hex(32)
        console(stderr=True).print(
            f"password of {plain(user)}: {password}; it is not shown again",
            style="cyan",
            soft_wrap=True,
        )
        line += ["resetpass", f"#{hashlib.sha256(password.encode()).hexdigest()}"]
    return line
