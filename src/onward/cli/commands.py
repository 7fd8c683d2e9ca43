"""How commands are made: `Resource` is a row of the table, with its columns, card and verbs.

A verb is a function of the client. The names of its other parameters say which options it has:
they are looked up in the verb's own options, then in those of the resource, then in COMMON.
`--json`, `--server`, `--key` and what becomes of the result are added here.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple, TypeAlias

import typer
from typer.core import TyperGroup

from onward.cli.tables import Field, Fields, card_of, cell, hint, print_page, shown
from onward.cli.terminal import (
    AsJson,
    Server,
    Token,
    console,
    duration_ms,
    print_json,
    use_token,
    with_client,
)

Show: TypeAlias = Callable[[Any], None]
REQUIRED: Any = inspect.Parameter.empty


class Option(NamedTuple):
    annotation: Any
    default: Any


Options: TypeAlias = Mapping[str, Option]


def argument(metavar: str, help: str, default: Any = REQUIRED) -> Option:
    kind: Any = str | None if default is None else str
    return Option(Annotated[kind, typer.Argument(metavar=metavar, help=help)], default)


def option(
    flags: str, help: str, kind: Any = str | None, default: Any = None, **more: Any
) -> Option:
    return Option(Annotated[kind, typer.Option(*flags.split(), help=help, **more)], default)


def flag(flags: str, help: str) -> Option:
    return option(flags, help, bool, False, metavar="")  # not <bool>: a flag takes no value


def duration(flags: str, help: str, **more: Any) -> Option:
    """A span of time in ms, written as 30s or 5m."""
    return option(flags, help, int | None, parser=duration_ms, metavar="30s|5m", **more)


COMMON: Options = {
    "cursor": option("--cursor", "Continue here: the cursor that the page before printed."),
    "limit": option("--limit", "How many to list at most.", int, 20, min=1, max=1000),
    "wait": flag("--wait", "Wait for the end, and print the result."),
    "timeout": duration("--timeout", "How long to wait."),
    "by": option(
        "--by", "Your name, for the record.", envvar="ONWARD_BY", show_default="your user name"
    ),
    "as_json": Option(AsJson, False),
    "server": Option(Server, None),
}


def add_command(
    app: typer.Typer, name: str, function: Callable[..., None], options: Options, help: str
) -> None:
    """Lines of `help` that begin with $ are examples. What calls a server also takes a key."""
    if "server" in options:
        options = {**options, "token": Option(Token, None)}

    def command(**given: Any) -> None:
        use_token(given.pop("token", None))
        function(**given)

    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(
                each, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind
            )
            for each, (kind, default) in options.items()
        ]
    )
    command.__annotations__ = {}
    app.command(name, help=with_examples(help))(command)


def command(
    app: typer.Typer,
    options: Options = COMMON,
    doing: str = "",
    see_also: str = "onward task list",
    after_conflict: str = "",
) -> Callable[[Callable[..., Any]], Any]:
    """A command that does more than one call; it has every option that it names.

    A coroutine is called with a client of the server first; `doing` is what could not be done if
    an error ends it, as in "watch run {id}".
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        def with_server(*, server: str | None, **given: Any) -> None:
            named = {name: "" if value is None else value for name, value in given.items()}
            work = partial(function, **given)
            with_client(
                server,
                doing.format(**named).strip(),
                work,
                see_also=see_also,
                after_conflict=after_conflict.format(**named),
            )

        name = function.__name__.strip("_").replace("_", "-")
        chosen = _options_of(function, options)
        run: Callable[..., None] = function
        if inspect.iscoroutinefunction(function):
            chosen = {**chosen, "server": options.get("server", COMMON["server"])}
            run = with_server
        add_command(app, name, run, chosen, inspect.getdoc(function) or "")
        return function

    return register


def _options_of(
    function: Callable[..., Any], own: Options, shared: Options = MappingProxyType({})
) -> Options:
    """Those that the function names; one that takes any keyword has all of its own."""
    parameters = inspect.signature(function).parameters
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    # In this order they stand in the help, with those of every command at the end.
    known = {**shared, **own}
    known |= {name: each for name, each in COMMON.items() if name not in known}
    return {
        name: each
        for name, each in known.items()
        if name in parameters or (takes_any and name in own)
    }


def with_examples(help: str) -> str:
    """Each in a paragraph of its own, as the help's markup wants it."""
    lines = help.splitlines()
    examples = [f"[cyan]{line.strip()[2:]}[/]" for line in lines if line.strip()[:2] == "$ "]
    text = "\n".join(line for line in lines if line.strip()[:2] != "$ ").strip()
    return "\n\n".join([text, "Examples:", *examples]) if examples else text


class Verb(NamedTuple):
    name: str
    help: str
    call: Callable[..., Awaitable[Any]]
    options: Options = MappingProxyType({})
    show: Show | None = None  # a page and a card have their own; anything else is a line
    none: str = ""  # of a verb that lists: printed when there is nothing
    done: str = ""  # of a verb that returns nothing: "report is removed"
    after_conflict: str = ""  # the next step if the item is not in a state for this


class Resource:
    def __init__(
        self,
        name: str,
        help: str,
        *,
        columns: Fields,
        key: Option | None = None,
        example: str = "",
        title: Field = "name",
        card: Fields | None = None,
        noun: str = "",
        see_also: str = "",
        folds: Sequence[str] = ("about",),
        next_steps: Callable[[Any], str] = lambda _: "",
        options: Options | None = None,
        group: type[TyperGroup] | None = None,
        verbs: Sequence[Verb] = (),
    ) -> None:
        """`title` is the one line of an item, `next_steps` the commands that may follow."""
        self.app = typer.Typer(cls=group, help=help, no_args_is_help=True)
        self.name = name
        self.noun = noun or name
        self.see_also = see_also or f"onward {name} list"
        self._columns, self._card, self._title = columns, card or columns, title
        self._folds, self._next_steps = folds, next_steps
        self._key, self._example = key, example
        self._options = {} if key is None else {"key": key}
        self._options |= options or {}
        for verb in verbs:
            self.add(verb)

    def add(self, verb: Verb) -> None:
        options = _options_of(verb.call, verb.options, self._options)
        about = f"{self.noun} {{key}}" if "key" in options else f"{self.noun}s"
        show = verb.show or (
            partial(self.print_page, none=verb.none)
            if verb.none
            else self.print_card
            if verb.name in ("show", "get")
            else self.print_line
        )

        def run(*, as_json: bool, server: str | None, **given: Any) -> None:
            found = with_client(
                server,
                f"{verb.name} {about}".format(**given),
                lambda client: verb.call(client, **given),
                see_also=self.see_also,
                after_conflict=verb.after_conflict.format(**given),
            )
            if as_json:
                print_json({"name": given["key"], verb.done: True} if verb.done else found)
            elif verb.done:
                console().print(f"{cell(given['key'])} is {verb.done}")
            else:
                show(found)

        common = {name: COMMON[name] for name in ("as_json", "server")}
        example = f"onward {self.name} {verb.name} {self._example if 'key' in options else ''}"
        help = verb.help if "$ " in verb.help else f"{verb.help}\n\n$ {example}"
        add_command(self.app, verb.name, run, {**options, **common}, help)

    def command(self, doing: str = "", **options: Option) -> Callable[[Callable[..., Any]], Any]:
        """A command of this group that is a function of its own."""
        return command(self.app, options, doing, self.see_also)

    def line(self, item: Any) -> str:
        return shown(item, self._title)

    def print_line(self, item: Any) -> None:
        console().print(self.line(item))

    def print_page(self, page: Any, *, none: str) -> None:
        print_page(page, self._columns, none=none, folds=self._folds)

    def print_card(self, item: Any) -> None:
        out = console()
        out.print(self.line(item))
        out.print(card_of(item, self._card))
        if steps := self._next_steps(item):
            hint(steps)
