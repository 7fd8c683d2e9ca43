"""A reader who does what a page says: files, terminals, a shell, a Python prompt.

All of a page happens in one folder, on ports and databases of its own.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from tests.documents.pages import Block
from tests.processes import HTTP, free_port
from tests.servers import fresh_url, postgres_ledger_url

PATIENCE_S = 240  # for one block: only one that hangs takes as long
PORT = re.compile(
    r'(?<=127\.0\.0\.1:)\d{4}\b|(?<=127\.0\.0\.1", )\d{4}\b'
    r"|(?<=localhost:)\d{4}\b|(?<=--port )\d{4}\b"
)
SERVER_PORT = "8070"
REDIS = "redis://127.0.0.1:6379"
POSTGRES = re.compile(r"postgresql://\w+@127\.0\.0\.1/\w+")


class Told(AssertionError):
    """A block did not do what its page promises."""


class Prompt:
    """A process that is given one piece after another, and answers with what each printed."""

    def __init__(self, command: list[str], folder: Path, env: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            command,
            cwd=folder,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._pieces = 0

    def give(self, make: Callable[[str], str]) -> str:
        """`make` writes the piece around the mark that shows its end."""
        self._pieces += 1
        mark = f"--- end of piece {self._pieces} ---"
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(make(mark).encode())
            self._process.stdin.flush()
        return self._read_until(mark)

    def _read_until(self, mark: str) -> str:
        out = self._process.stdout
        assert out is not None
        told, until = "", time.monotonic() + PATIENCE_S
        while mark not in told:
            ready, _, _ = select.select([out], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                raise Told(f"it has not ended after {PATIENCE_S} s:\n{told}")
            read = os.read(out.fileno(), 65_536)
            if not read:
                raise Told(f"it failed:\n{told}")
            told += read.decode()
        return told.partition(mark)[0]

    def end(self) -> None:
        _kill(self._process)


class Reader:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports: dict[str, int] = {}
        self.last = ""  # what the last block printed
        self._redis = self._postgres = ""
        self._terminals: list[subprocess.Popen[bytes]] = []
        self._shell: Prompt | None = None
        self._python: Prompt | None = None
        url = f"http://127.0.0.1:{self._port(SERVER_PORT)}"
        self.env = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "ONWARD_URL": url,
            "ONWARD_PORT": str(self._port(SERVER_PORT)),
            "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]),
            "PYTHONUNBUFFERED": "1",
            "TERM": "dumb",
            "HOME": str(folder),
        }

    def do(self, block: Block) -> None:
        try:
            self._do(block)
        except (Told, ValueError) as error:
            raise Told(f"{block}\n{block.text}\n{error}\n{self._logs()}") from None

    def close(self) -> None:
        for prompt in (self._shell, self._python):
            if prompt is not None:
                prompt.end()
        for terminal in self._terminals:
            _kill(terminal)

    # One block.

    def _do(self, block: Block) -> None:
        text = self._localized(block.text)
        if block.exempt:
            _must_parse(block.language, text)
        elif block.is_output:
            _must_match(text, self.last)
        elif block.stays_open:
            self._open_terminal(text)
        elif block.title:
            _must_parse(block.language, text)
            path = self.folder / block.title
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        elif block.language == "sh":
            self.last = self._in_shell(text)
        elif block.language == "python":
            self.last = self._in_python(text)
        else:
            _must_parse(block.language, text)

    def _in_shell(self, text: str) -> str:
        if self._shell is None:
            # `select` reads what the last command wrote, and `-e` ends the shell with the first
            # command that fails.
            self._shell = Prompt(["bash", "-e"], self.folder, self.env)
        return self._shell.give(lambda mark: f"{text}\necho; echo '{mark}'\n")

    def _in_python(self, text: str) -> str:
        if self._python is None:
            prompt = str(Path(__file__).with_name("prompt.py"))
            self._python = Prompt([sys.executable, prompt], self.folder, self.env)
        return self._python.give(lambda mark: json.dumps({"source": text, "mark": mark}) + "\n")

    def _open_terminal(self, text: str) -> None:
        log = self.folder / f"terminal-{len(self._terminals) + 1}.log"
        with log.open("wb") as out:
            terminal = subprocess.Popen(
                ["bash", "-e", "-c", text],
                cwd=self.folder,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        self._terminals.append(terminal)
        ports = {int(port) for port in PORT.findall(text)}
        if re.search(r"\bonward (up|serve)\b", text) and "--port" not in text:
            ports.add(self._port(SERVER_PORT))
        if re.search(r"\b(onward (up|serve)|uvicorn)\b", text):
            for port in ports:
                self._wait_for(port, terminal)

    def _wait_for(self, port: int, terminal: subprocess.Popen[bytes]) -> None:
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            with suppress(Exception):
                if HTTP.get(f"http://127.0.0.1:{port}/ready", timeout=2).status_code != 503:
                    return
            if terminal.poll() is not None:
                break
            time.sleep(0.05)
        raise Told("what was started in a terminal of its own does not answer")

    # As it must be on this machine, where others run the same page.

    def _localized(self, text: str) -> str:
        if REDIS in text:
            self._redis = self._redis or fresh_url("valkey").rstrip("/")
            text = re.sub(re.escape(REDIS) + r"(/0)?", self._redis, text)
        if POSTGRES.search(text):
            self._postgres = self._postgres or postgres_ledger_url("postgres18")
            text = POSTGRES.sub(self._postgres, text)
        return PORT.sub(lambda found: str(self._port(found[0])), text)

    def _port(self, port: str) -> int:
        if int(port) in self.ports.values():
            return int(port)  # put in by us: a database's
        return self.ports.setdefault(port, free_port())

    def _logs(self) -> str:
        logs = sorted(self.folder.glob("terminal-*.log"))
        return "\n".join(f"{each.name}:\n{each.read_text()[-2000:]}" for each in logs)


def _must_parse(language: str, text: str) -> None:
    if language == "json":
        json.loads(text)
    elif language in ("yaml", "yml"):
        yaml.safe_load(text)
    elif language == "toml":
        tomllib.loads(text)
    elif language == "python":
        compile(text, "<block>", "exec", flags=0x2000)  # await at the top is fine


def _must_match(expected: str, told: str) -> None:
    at = 0
    for line in filter(None, map(str.strip, expected.splitlines())):
        pattern = re.escape(line).replace("…", ".*?").replace(r"\ ", r"\s+")
        found = re.compile(pattern).search(told, at)
        if found is None:
            raise Told(f"not printed: {line}\nprinted:\n{told}")
        at = found.end()


def _kill(process: subprocess.Popen[Any]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(BrokenPipeError):
                pipe.close()
