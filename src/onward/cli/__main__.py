"""`onward`: the commands, put together."""

from __future__ import annotations

from typing import Annotated

import typer

from onward import __version__
from onward.cli import (
    approvals,
    demo,
    dlq,
    doctor,
    exec_worker,
    flow,
    keys,
    log,
    mcp,
    queue,
    run,
    schedule,
    serve,
    submit,
    task,
    worker,
)

app = typer.Typer(
    name="onward",
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
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Hand off work and move on."""


app.command()(serve.up)
app.command()(serve.serve)
app.command()(worker.worker)
app.command("exec-worker")(exec_worker.exec_worker)
app.command()(submit.submit)
app.add_typer(task.app, name="task")
app.add_typer(flow.app, name="flow")
app.add_typer(run.app, name="run")
app.add_typer(queue.app, name="queue")
app.add_typer(dlq.app, name="dlq")
app.add_typer(approvals.app, name="approvals")
app.add_typer(schedule.app, name="schedule")
app.add_typer(log.app, name="log")
app.add_typer(keys.app, name="keys")
app.add_typer(demo.app, name="demo")
app.command()(mcp.mcp)
app.command()(doctor.doctor)


def main() -> None:
    app()


if __name__ == "__main__":
    main()
