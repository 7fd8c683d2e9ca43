"""`onward worker`: run somebody's Worker object."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onward.cli.terminal import REFUSED, USAGE, Server, fail

if TYPE_CHECKING:
    from types import ModuleType

    from onward.client.worker import Worker


def worker(
    where: Annotated[
        str, typer.Argument(metavar="MODULE:ATTR", help="Where the Worker object is.")
    ],
    via: Annotated[str, typer.Option("--via", help="How it is connected: socket.")] = "socket",
    concurrency: Annotated[
        int | None, typer.Option("--concurrency", min=1, help="Tasks at a time.")
    ] = None,
    server: Server = None,
) -> None:
    """Connect a worker and serve until Ctrl-C; what runs then is finished first.

    Examples:

    [cyan]onward worker examples/hello_worker.py:worker[/]

    [cyan]onward worker mypackage.jobs:worker --concurrency 4 --server http://10.0.0.5:8070[/]
    """
    from onward.client.address import server_url
    from onward.client.worker import NameTaken

    if via != "socket":
        fail(USAGE, f"--via {via} is not known", "workers are connected by socket", "--via socket")
    found = _find(where)
    try:
        found.url = server_url(server) if server is not None else found.url
        found.concurrency = concurrency or found.concurrency
        found.run()
    except ValueError as error:
        fail(USAGE, f"{where} cannot be run", str(error), "onward worker --help")
    except NameTaken as error:
        fail(REFUSED, f"{where} has stopped", str(error), "give each worker an id of its own")


def _find(where: str) -> Worker:
    from onward.client.worker import Worker

    module, _, name = where.rpartition(":")
    if not module:
        module, name = where, "worker"
    found: Any = getattr(_load(module), name, None)
    if not isinstance(found, Worker):
        fail(
            USAGE,
            f"{where} is no worker",
            f"{name!r} is {'missing' if found is None else f'a {type(found).__name__}'} there",
            "name an onward.Worker, as in examples/hello_worker.py:worker",
        )
    return found


def _load(module: str) -> ModuleType:
    try:
        if module.endswith(".py"):
            return _load_file(Path(module))
        from importlib import import_module

        sys.path.insert(0, str(Path.cwd()))  # as `python -m` has it
        return import_module(module)
    except (ModuleNotFoundError, FileNotFoundError) as error:
        then = "name it as you would import it, or by its file"
        return fail(USAGE, f"{module} cannot be loaded", str(error), then)


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
