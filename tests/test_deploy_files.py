"""The files in deploy/, as far as they can be checked without an engine: they parse, and every
setting, command, option, path and file that they and deploy.md name exists.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer.main
import yaml  # type: ignore[import-untyped]

from onward.cli.__main__ import app
from onward.cli.terminal import USAGE
from onward.doors.access import OPEN_PATHS, PAGE
from onward.settings import unknown
from onward.wire.queues import QueueView

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "deploy"
FILES = [path for path in DEPLOY.rglob("*") if path.is_file() and path.suffix != ".json"]
DOCUMENT = ROOT / "docs" / "operations" / "deploy.md"
# Variables of the compose files themselves: they are handed on under a setting's name.
HANDED_ON = {"ONWARD_WORKER_KEY", "ONWARD_METRICS_KEY"}


def manifests(path: Path) -> list[Any]:
    return [each for each in yaml.safe_load_all(path.read_text()) if each is not None]


def within(value: Any) -> Iterator[Any]:
    """Every value in a document."""
    yield value
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for part in parts:
        yield from within(part)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(DEPLOY)))
def test_every_setting_that_a_file_names_exists(path: Path) -> None:
    named = set(re.findall(r"\bONWARD_[A-Z_]+", path.read_text()))
    assert unknown(dict.fromkeys(named - HANDED_ON, "")) == {}


def test_every_setting_that_the_document_names_exists() -> None:
    named = set(re.findall(r"\bONWARD_[A-Z_]+", DOCUMENT.read_text()))
    assert unknown(dict.fromkeys(named, "")) == {}


@cache
def root() -> Any:
    return typer.main.get_command(app)


def check_command(words: list[str]) -> None:
    """As far as there are groups and commands; then every option must be one of the command's."""
    command, rest = root(), [*words]
    while (commands := getattr(command, "commands", None)) is not None:
        assert rest, f"onward {' '.join(words)} is no whole command"
        command = commands.get(name := rest.pop(0))
        assert command is not None, name
    options = {flag for each in command.params for flag in each.opts}
    assert {word for word in rest if word.startswith("--")} <= options, words


def commands_in(text: str) -> Iterator[list[str]]:
    for line in re.sub(r"\\\n", " ", text).splitlines():
        for found in re.findall(
            r"(?<![\w/.:-])(?:/opt/onward/bin/)?onward ([a-z][^|&>#)`]*)", line
        ):
            yield found.split()


def test_every_command_of_the_document_exists() -> None:
    text = DOCUMENT.read_text()
    found = [
        words
        for block in re.findall(r"```sh\n(.*?)```", text, flags=re.S)
        for line in block.splitlines()
        if not line.startswith(("docker", "kubectl", "useradd", "cp", "systemctl", "cd"))
        for words in commands_in(line)
    ]
    found += [line.split()[1:] for line in re.findall(r"`(onward [a-z][^`…]*)`", text)]
    assert len(found) > 15
    for words in found:
        if words not in (["db"], ["keys"]):  # named as a whole
            check_command(words)


def test_the_services_of_the_compose_files() -> None:
    for name in ("compose.minimal.yml", "compose.full.yml"):
        (whole,) = manifests(DEPLOY / name)
        ours = [each for each in whole["services"].values() if each["image"] == "onward"]
        assert len(ours) >= 2, name
        for service in ours:
            check_command(service.get("command", ["serve"]))
        for service in whole["services"].values():
            for volume in service.get("volumes", ()):
                source = volume.split(":")[0]
                if source.startswith(".") and source not in ABSENT:
                    assert (DEPLOY / source).exists(), source
                elif not source.startswith("."):
                    assert source in whole["volumes"], source


# Made by the person who deploys.
ABSENT = {"./tls"}


def test_the_manifests_of_kubernetes() -> None:
    folder = DEPLOY / "kubernetes"
    (kustomization,) = manifests(folder / "kustomization.yaml")
    assert all((folder / name).exists() for name in kustomization["resources"])
    every = [one for path in folder.glob("*.yaml") for one in manifests(path)]
    named = {(one["kind"], one["metadata"]["name"]) for one in every if "metadata" in one}
    secret = next(one for one in every if one["kind"] == "Secret")
    for value in within(every):
        if not isinstance(value, dict):
            continue
        if "secretKeyRef" in value:
            assert value["secretKeyRef"]["key"] in secret["stringData"]
        if "scaleTargetRef" in value:
            assert ("Deployment", value["scaleTargetRef"]["name"]) in named
        if "httpGet" in value:
            assert value["httpGet"]["path"].rstrip("/") in {*OPEN_PATHS, PAGE}
        if "args" in value and value["image"].startswith("onward"):
            check_command(value["args"])
    scaled = next(one for one in every if one["kind"] == "ScaledObject")
    (trigger,) = scaled["spec"]["triggers"]
    assert re.fullmatch(
        r"http://onward\.onward\.svc:8070/api/v2/queues/\w+", trigger["metadata"]["url"]
    )
    fields = {field.encode_name for field in msgspec.structs.fields(QueueView)}
    assert trigger["metadata"]["valueLocation"] in fields


def test_the_image_is_made_of_what_is_there() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    for line in re.findall(r"^COPY (?!--from)(.*)$", text, flags=re.M):
        *sources, _ = line.split()
        kept = (ROOT / ".dockerignore").read_text().split()
        assert all((ROOT / source).exists() and f"!{source}" in kept for source in sources)
    extras = re.search(r"^ARG EXTRAS=(.*)$", text, flags=re.M)
    assert extras is not None
    project = (ROOT / "pyproject.toml").read_text()
    assert all(re.search(rf"^{extra} = \[", project, flags=re.M) for extra in extras[1].split(","))
    probe = re.search(r'CMD \["python", "-c", "(.*)"\]', text)
    assert probe is not None
    compile(probe[1], "HEALTHCHECK", "exec")


def test_the_proxies_lead_to_the_same_servers() -> None:
    files = ("nginx/upstream.conf", "caddy/Caddyfile")
    for text in ((DEPLOY / name).read_text() for name in files):
        assert set(re.findall(r"127\.0\.0\.1:(\d+)", text)) == {"8071", "8072"}
    for name in ("nginx/upstream.conf", "nginx/upstream.compose.conf"):
        assert "upstream onward {" in (DEPLOY / name).read_text()


@pytest.mark.slow
def test_systemd_understands_the_units(tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("no systemd-analyze here: apt-get install systemd")
    for path in (DEPLOY / "systemd").glob("*.service"):
        command = re.search(r"^ExecStart=/opt/onward/bin/onward (\w+)", path.read_text(), re.M)
        assert command is not None
        check_command([command[1]])
        unit = tmp_path / path.name
        # It looks for the program, which is not at its place here.
        unit.write_text(path.read_text().replace("/opt/onward/bin/onward", sys.executable))
        done = subprocess.run(
            [program, "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert f"RestartPreventExitStatus={USAGE}" in path.read_text()
