"""What a command that does not exist is answered with: the one that was probably meant."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

FEW = 3  # `list` is below nearly every group: to name them all would help nobody


class Root(TyperGroup):
    """`onward explain` is `onward task explain`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0]
        if name not in self.commands:
            groups = self.commands.items()
            below = [each for each, group in groups if name in getattr(group, "commands", {})]
            if 0 < len(below) <= FEW:
                meant = " or ".join(f"'onward {each} {name}'" for each in below)
                ctx.fail(f"No such command {name!r}. Did you mean {meant}?")
        return super().resolve_command(ctx, args)


class Runs(TyperGroup):
    """`onward run report` looks like the start of something."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0]
        if name not in self.commands and not name.startswith("-"):
            ctx.fail(
                f"No such command {name!r}. A task is started by 'onward submit {name}', "
                f"a flow by 'onward flow run {name}'."
            )
        return super().resolve_command(ctx, args)
