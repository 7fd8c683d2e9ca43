"""`onward exec-worker`: the worker that ships with flows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from onward.cli.tables import welcome
from onward.cli.terminal import USAGE, AsJson, fail, print_json_line
from onward.cli.worker import run_called
from onward.core.urls import shown

if TYPE_CHECKING:
    from onward.client.worker import Worker

DEFAULT_URL = "http://127.0.0.1:8080"


def exec_worker(
    listen: Annotated[
        str,
        typer.Option(
            "--listen",
            envvar="WORKER_URL",
            help="The URL to listen at; another port if that one is taken.",
        ),
    ] = DEFAULT_URL,
    server: Annotated[
        str | None,
        typer.Option(
            "--server",
            envvar=["REGISTRY_URL", "ONWARD_URL"],
            help="URL of the server to register with.",
            show_default="this machine",
        ),
    ] = None,
    id: Annotated[
        str | None, typer.Option("--id", help="Its name.", show_default="made of host and process")
    ] = None,
    concurrency: Annotated[
        int, typer.Option("--concurrency", min=1, max=1000, help="Calls at a time.")
    ] = 10,
    as_json: AsJson = False,
) -> None:
    """Serve transform, sum and route over HTTP until Ctrl-C; what runs then is finished first.

    Examples:

    [cyan]onward exec-worker[/]

    [cyan]REGISTRY_URL=http://127.0.0.1:8070 WORKER_URL=http://127.0.0.1:8081 onward exec-worker[/]
    """
    from onward.client.worker import Worker
    from onward.workers.http.exec_services import SERVICES

    try:
        worker = Worker(server, id=id, concurrency=concurrency)
    except ValueError as error:
        fail(USAGE, "the worker cannot start", str(error), "look at --server and REGISTRY_URL")
    for service in SERVICES:
        worker.service(name=service.name)(service.function)

    def told(url: str) -> None:
        if as_json:
            services = [service.name for service in SERVICES]
            line = {"id": worker.id, "url": url, "services": services, "server": worker.url}
            print_json_line(line)
        else:
            _welcome(worker, url)

    worker.on_registered = told
    try:
        run_called(worker, listen)
    except ValueError as error:
        fail(USAGE, "the worker cannot start", str(error), "look at --listen and WORKER_URL")


def _welcome(worker: Worker, url: str) -> None:
    server = "" if worker.url == "http://127.0.0.1:8070" else f" --server {shown(worker.url)}"
    curl = f"""curl -s {url}/exec/sum -d '{{"input": [1, 2, 3], "params": {{}}}}'"""
    rows = [
        ("listens", url),
        ("server", worker.url),
        ("serves", "transform, sum, route"),
        ("try", f"onward submit sum '[1, 2, 3]' --wait{server}"),
        ("or", curl),
    ]
    welcome(f"worker {worker.id}", rows, "Ctrl-C finishes what runs, and stops.")
