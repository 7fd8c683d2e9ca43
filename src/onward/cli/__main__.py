"""`onward`: the commands, put together."""

from __future__ import annotations

from typing import Annotated

import typer

from onward import __version__
from onward.cli import (
    batch,
    db,
    demo,
    dlq,
    doctor,
    exec_worker,
    flow,
    keys,
    log,
    mcp,
    operation,
    redis_acl,
    resources,
    run,
    schedule,
    serve,
    submit,
    task,
    worker,
)
from onward.cli.commands import command
from onward.cli.unknown import Root

app = typer.Typer(
    name="onward",
    cls=Root,
    help="Hand off work and move on.",
    epilog="First steps:  onward up   then   onward submit countdown '{\"seconds\": 3}' --wait",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        print(f"onward {__version__}")
        raise typer.Exit


@app.callback()
def _onward(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_version, is_eager=True, metavar=""
        ),
    ] = False,
) -> None:
    """Hand off work and move on."""


command(app, serve.OPTIONS)(serve.up)
command(app, serve.OPTIONS)(serve.serve)
command(app, worker.OPTIONS)(worker.worker)
command(app, exec_worker.OPTIONS)(exec_worker.exec_worker)
command(app, submit.OPTIONS, "submit {type}")(submit.submit)
for group in (
    task.TASK,
    batch.BATCH,
    operation.OPERATION,
    flow.FLOW,
    run.RUN,
    resources.ATTENTION,
    resources.QUEUE,
    resources.LIMIT,
    dlq.DLQ,
    resources.APPROVALS,
    schedule.SCHEDULE,
    resources.WORKERS,
    resources.SERVICE,
    resources.SESSION,
    log.LOG,
):
    app.add_typer(group.app, name=group.name)
app.add_typer(keys.app, name="keys")
app.add_typer(db.app, name="db")
app.add_typer(redis_acl.app, name="redis")
app.add_typer(demo.app, name="demo")
command(app, mcp.OPTIONS)(mcp.mcp)
command(app, doctor.OPTIONS)(doctor.doctor)


if __name__ == "__main__":
    from onward.cli.entry import main

    main()
