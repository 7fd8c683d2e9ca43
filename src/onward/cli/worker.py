"""`onward worker`: run a Worker object."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from onward.cli.commands import Options, argument, flag, option
from onward.cli.processes import end_with_parent, this_child
from onward.cli.terminal import REFUSED, USAGE, fail
from onward.cli.worker_processes import WorkerProcesses

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

    from onward.client.service import Service
    from onward.client.worker import MakeTransport, Transport, Worker
    from onward.wire.frames import RegisterFrame


WAYS = ("socket", "ledger", "streams", "agent-stream", "http")
ON_REDIS = ("streams", "agent-stream")
LISTEN = option(
    "--listen",
    "With --via http: the URL to listen at; another port if that one is taken.",
    str,
    "http://127.0.0.1:8080",
    envvar="WORKER_URL",
)
OPTIONS: Options = {
    "where": argument("MODULE:ATTR", "Where the Worker object is."),
    "via": option("--via", f"How it gets its tasks: {', '.join(WAYS)}.", str, "socket"),
    "redis": option(
        "--redis",
        "With --via streams or agent-stream: its Redis, as in redis://127.0.0.1:6379.",
        envvar=["ONWARD_REDIS", "REDIS_URL"],
    ),
    "ledger": option(
        "--ledger",
        "With --via ledger: the servers' ledger, as in redis://127.0.0.1:6379/0.",
        envvar="ONWARD_LEDGER",
    ),
    "listen": LISTEN,
    "concurrency": option("--concurrency", "How many tasks run at a time.", int | None, min=1),
    "processes": option("--processes", "How many processes run it; for CPU work.", int, 1, min=1),
    "reload": flag("--reload", "Start anew when a Python file below this folder changes."),
    "log_json": flag("--log-json", "Log JSON lines, with task and attempt."),
}


def worker(  # noqa: C901 a way of getting tasks is a branch
    where: str,
    via: str,
    redis: str | None,
    ledger: str | None,
    listen: str,
    concurrency: int | None,
    processes: int,
    reload: bool,
    log_json: bool,
    server: str | None,
) -> None:
    """Run a worker until Ctrl-C; it finishes its running tasks before it ends.

    $ onward worker examples/hello_worker.py:worker
    $ onward worker mypackage.jobs:worker --concurrency 4 --server http://127.0.0.1:8071
    $ onward worker mypackage.jobs:worker --via streams --redis redis://10.0.0.5
    $ onward worker mypackage.jobs:worker --via agent-stream --redis redis://10.0.0.5
    $ onward worker mypackage.jobs:worker --via ledger --ledger redis://10.0.0.5:6379/0
    $ onward worker mypackage.jobs:worker --via http --listen http://127.0.0.1:8080
    $ onward worker jobs.py:worker --processes 4
    $ onward worker jobs.py:worker --reload
    """
    from onward.client.address import server_url

    if via not in WAYS:
        fail(USAGE, f"--via {via} is not known", f"there are {', '.join(WAYS)}", "--via socket")
    if via in ON_REDIS and redis is None:
        fail(USAGE, f"--via {via} needs a Redis", "none is named", "--redis redis://127.0.0.1:6379")
    child = this_child()
    if child is None and (processes > 1 or reload):
        raise typer.Exit(WorkerProcesses(processes, reload=reload).run())
    found = _find(where)
    if child is not None:
        found.id = f"{found.id}-{child.number}"
        end_with_parent(child)
    try:
        if server is not None:
            found.url, found.url_is_explicit = server_url(server), True
        found.concurrency = concurrency or found.concurrency
        if via == "http":
            run_called(found, listen, log_json=log_json)
        elif via == "ledger":
            from onward.logs import speak_through_logging

            speak_through_logging()
            _run(found, where, transport=ledger_transport(ledger), log_json=log_json)
        else:
            on_redis = redis if via in ON_REDIS else None
            _run(found, where, redis=on_redis, agents=via == "agent-stream", log_json=log_json)
    except ValueError as error:
        fail(USAGE, f"{where} cannot be run", str(error), "onward worker --help")
    except ModuleNotFoundError as error:
        if error.name != "redis":  # another extra: entry.py names it
            raise
        fail(USAGE, f"--via {via} cannot be used", str(error), "pip install 'onward[redis]'")


def _run(
    worker: Worker,
    where: str,
    *,
    redis: str | None = None,
    agents: bool = False,
    transport: MakeTransport | None = None,
    log_json: bool,
) -> None:
    from onward.client.errors import NotAdmitted, WorkerRefused
    from onward.client.worker import NameTaken
    from onward.core.errors import Invalid, NotLetIn

    try:
        worker.run(redis=redis, agents=agents, transport=transport, log_json=log_json)
    except (NotAdmitted, NotLetIn, Invalid) as error:
        fail(REFUSED, f"{where} cannot work there", str(error), error.hint or "")
    except WorkerRefused as error:
        fail(REFUSED, f"{where} cannot work there", str(error), "onward worker --help")
    except NameTaken as error:
        fail(REFUSED, f"{where} has stopped", str(error), "give each worker an id of its own")


def ledger_transport(url: str | None) -> MakeTransport:
    from onward.cli.serve import check_shared, read_settings
    from onward.workers.ledger.pull import LedgerTransport

    settings = read_settings(ledger=url)
    check_shared(settings, "--via ledger", "--via socket")

    def make(
        me: RegisterFrame, services: Mapping[str | None, Service], on_drain: Callable[[], None]
    ) -> Transport:
        return LedgerTransport(
            settings,
            name=str(me.worker_id),
            slots=me.concurrency,
            most=me.most,
            services={name: service for name, service in services.items() if name is not None},
            groups={} if me.group is None else {me.group: services[None]},
            queues=me.services,
            on_drain=on_drain,
        )

    return make


def run_called(worker: Worker, listen: str, *, log_json: bool = False) -> None:
    """Listen, be registered, be called."""
    from onward.client.errors import WorkerRefused

    try:
        worker.run(listen=listen, log_json=log_json)
    except WorkerRefused as error:
        fail(REFUSED, "the worker has stopped", str(error), "onward worker --help")


def _find(where: str) -> Worker:
    from onward.client.worker import Worker

    if where in ("list", "drain") and not Path(f"{where}.py").is_file():
        fail(USAGE, f"{where} is not a worker", "this command runs one", f"onward workers {where}")
    module, _, name = where.rpartition(":")
    if not module:
        module, name = where, "worker"
    found: Any = getattr(load_module(module), name, None)
    if not isinstance(found, Worker):
        fail(
            USAGE,
            f"{where} is not a worker",
            f"{name!r} is {'missing' if found is None else f'a {type(found).__name__}'} there",
            "name an onward.Worker, as in examples/hello_worker.py:worker",
        )
    return found


def load_module(module: str) -> ModuleType:
    try:
        if module.endswith(".py"):
            return _load_file(Path(module))
        from importlib import import_module

        sys.path.insert(0, str(Path.cwd()))  # as `python -m` has it
        return import_module(module)
    except (ModuleNotFoundError, FileNotFoundError) as error:
        then = "name it as you would import it, or by its file"
        return fail(USAGE, f"{module} cannot be loaded", _mistake(error), then)
    except Exception as error:  # whatever the lines of the file raise
        then = "correct it, then try again"
        return fail(USAGE, f"{module} cannot be loaded", _mistake(error), then)


def _mistake(error: Exception) -> str:
    """File, line and what is wrong; where a library raised it, the line that called the library."""
    from sysconfig import get_paths
    from traceback import extract_tb

    if isinstance(error, SyntaxError) and Path(error.filename or "").is_file():
        line = (error.text or "").strip()
        return f"{_near(error.filename or '')}:{error.lineno}: {error.msg}: {line}"
    folders = (get_paths()[kind] for kind in ("stdlib", "platstdlib", "purelib", "platlib"))
    libraries = (*folders, str(Path(__file__).parents[1]), "<")
    frames = [
        frame
        for frame in extract_tb(error.__traceback__)
        if not frame.filename.startswith(libraries)
    ]
    if not frames:  # the module itself is not there
        return str(error)
    last = frames[-1]
    return f"{_near(last.filename)}:{last.lineno}: {type(error).__name__}: {error}: {last.line}"


def _near(file: str) -> str:
    """As seen from here, if it is below."""
    path = Path(file)
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _load_file(path: Path) -> ModuleType:
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    sys.path.insert(0, str(path.parent.resolve()))
    module = module_from_spec(spec)
    # Type hints are looked up in the module by its name.
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module
