"""`onward exec-worker`: the worker that ships with flows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onward.cli.commands import Options, option
from onward.cli.tables import welcome
from onward.cli.terminal import USAGE, fail, print_json_line
from onward.cli.worker import LISTEN, run_called
from onward.urls import shown

if TYPE_CHECKING:
    from onward.client.worker import Worker

OPTIONS: Options = {
    "listen": LISTEN,
    "server": option(
        "--server",
        "URL of the server to register with.",
        envvar=["REGISTRY_URL", "ONWARD_URL"],
        show_default="this machine",
    ),
    "id": option("--id", "The worker's id.", show_default="made of host and process"),
    "concurrency": option("--concurrency", "How many calls at a time.", int, 10, min=1, max=1000),
}


def exec_worker(
    listen: str, server: str | None, id: str | None, concurrency: int, as_json: bool
) -> None:
    """Serve transform, sum and route over HTTP until Ctrl-C, for flows to try out.

    $ onward exec-worker
    $ REGISTRY_URL=http://127.0.0.1:8070 WORKER_URL=http://127.0.0.1:8081 onward exec-worker
    """
    from onward.client.worker import Worker
    from onward.workers.http.exec_services import SERVICES

    try:
        worker = Worker(server, id=id, concurrency=concurrency)
    except ValueError as error:
        fail(USAGE, "the worker cannot start", str(error), "check --server and REGISTRY_URL")
    for service in SERVICES:
        worker.service(name=service.name)(service.function)

    def registered(url: str) -> None:
        if as_json:
            services = [service.name for service in SERVICES]
            line = {"id": worker.id, "url": url, "services": services, "server": worker.url}
            print_json_line(line)
        else:
            _welcome(worker, url)

    worker.on_registered = registered
    try:
        run_called(worker, listen)
    except ValueError as error:
        fail(USAGE, "the worker cannot start", str(error), "check --listen and WORKER_URL")


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
