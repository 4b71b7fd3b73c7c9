"""The installed service and the running server: units, settings, models, what was left out, and versions."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from edge_serve.check import config as check_config
from edge_serve.config.settings.server import SETTINGS, ServerConfig, parse_argv
from edge_serve.config.settings.table import BadSetting, unknown_variables
from edge_serve.doctor.finding import Finding
from edge_serve.doctor.ports import DoorPort, is_local
from edge_serve.engines.settings import without_cache
from edge_serve.errors import EdgeServeError
from edge_serve.models.repository.repository import Repository
from edge_serve.observe.status.client import Unreachable, fetch, find_target
from edge_serve.observe.status.probe import library_versions
from edge_serve.records import slotted
from edge_serve.supervision import safe_mode
from edge_serve.supervision.command import DEFAULT_DIRECTORY
from edge_serve.systemd.unit import HTTP_SOCKET, NAME, Unit, environment_of, find_unit, properties_of, systemctl

SOCKETS = (HTTP_SOCKET, "edge-serve-grpc.socket", "edge-serve-metrics.socket")
_PROPERTIES = (
    "Id", "LoadState", "ActiveState", "SubState", "UnitFileState", "Result", "NRestarts", "StatusText",
    "NeedDaemonReload", "Listen",
)  # fmt: skip
#: how long a running server may take to answer, seconds
_ASK_SECONDS = 5.0
_MOST_NAMED = 5
_JOURNAL = "journalctl -u edge-serve -n 50 shows why"


@slotted
class Installation:
    """The installation on this machine.

    Attributes:
        unit: the installed service; None = there is none.
        environ: the variables that the server would start with.
        config: the settings in them; None = they cannot be used.
        states: properties of the units that systemd knows, by name; empty = no systemd answers.
    """

    unit: Unit | None = None
    environ: Mapping[str, str] = field(default_factory=dict)
    config: ServerConfig | None = None
    states: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def ports(self) -> list[DoorPort]:
        """The ports of the server."""
        config = self.config or ServerConfig()
        doors = [door for door in ("http", "grpc", "metrics") if getattr(config, f"allow_{door}")]
        ports = [
            DoorPort(getattr(config, f"{door}_port"), getattr(config, f"{door}_address") or config.http_address,
                 f"--{door}-port")
            for door in doors
        ]  # fmt: skip
        return [port for port in ports if port.number]

    @property
    def held(self) -> set[int]:
        """Ports of the socket units that listen."""
        return {
            int(port)
            for name in SOCKETS
            if self.states.get(name, {}).get("ActiveState") == "active"
            for port in re.findall(r":(\d+) \(Stream\)", self.states[name].get("Listen", ""))
        }

    @property
    def state_directory(self) -> str:
        """Where the server keeps its record of crashes; "" = it keeps none."""
        named = self.config.state_directory if self.config is not None else ""
        return named or (DEFAULT_DIRECTORY if self.unit is not None else "")


def find_installation(environ: Mapping[str, str]) -> Installation:
    """Return what is set up: the installed service, else what the environment says."""
    unit = find_unit()
    values = dict(environ) if unit is None else environment_of(unit).values
    config = None
    if values.get("EDGE_SERVE_MODEL_REPOSITORY"):
        with contextlib.suppress(BadSetting):  # `examine_settings` says why
            config = parse_argv((), values)
    properties = [f"--property={name}" for name in _PROPERTIES]
    states = unit_states(systemctl("show", NAME, *SOCKETS, *properties)) if unit is not None else {}
    return Installation(unit, values, config, states)


def unit_states(text: str) -> dict[str, dict[str, str]]:
    """Return the properties of each unit in what `systemctl show` prints: blocks with an empty line between them."""
    units = [properties_of(block.splitlines()) for block in text.strip().split("\n\n")]
    return {unit.get("Id", ""): unit for unit in units if unit.get("LoadState") == "loaded"}


def examine_units(installed: Installation) -> Iterator[Finding]:
    """Examine the states of the units."""
    if installed.unit is None:
        yield Finding("service", "edge-serve is not installed as a service", None, "docs/service.md says how")
        return
    if not installed.states:
        yield Finding("service", f"{NAME} is installed, but no systemd answers here (is this a container?)")
        return
    for name, state in installed.states.items():
        yield _unit(name, state)
    if any(state.get("NeedDaemonReload") == "yes" for state in installed.states.values()):
        yield Finding("service", "a unit file was changed since systemd read it", False, "systemctl daemon-reload")


def _unit(name: str, state: Mapping[str, str]) -> Finding:
    active, enabled = state.get("ActiveState", ""), state.get("UnitFileState", "")
    restarts = state.get("NRestarts", "0")
    text = f"{name}: {active} ({state.get('SubState', '')}), {enabled or 'not enabled'}"
    if restarts not in ("", "0"):
        text += f", restarted {restarts} times"
    if state.get("StatusText"):
        text += f": {state['StatusText']}"
    if active == "failed":
        return Finding("service", f"{text}: {state.get('Result', '')}", False, _JOURNAL)
    if active == "activating":
        return Finding("service", text, None, "edge-serve status shows what it waits for")
    if active == "active" and enabled == "disabled":
        return Finding("service", f"{text}: it does not start at the next boot", False, f"systemctl enable {name}")
    if active != "active":
        return Finding("service", text, None, f"systemctl enable --now {name}" if name == NAME else "")
    return Finding("service", text, True)


def examine_settings(installed: Installation, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Examine the settings and what they name, as `edge-serve check-config` does."""
    if installed.unit is None and not environ.get("EDGE_SERVE_MODEL_REPOSITORY"):
        yield from _examine_variables(environ)
        return
    if installed.unit is not None and os.geteuid() != 0:
        text = "the settings of the service can be checked by root only"
        yield Finding("settings", text, None, "sudo edge-serve doctor")
        return
    checked = check_config.examine((), environ)
    restart = "edge-serve check-config && systemctl restart edge-serve"
    advice = "correct it" if installed.unit is None else f"correct it, then: {restart}"
    for text in checked.warnings:
        yield Finding("settings", text)
    for text in checked.problems:
        yield Finding("settings", text, False, advice)
    if not checked.problems:
        yield Finding("settings", f"good: {checked.subject}", True)


def _examine_variables(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Examine the variables of a server that gets its model repository on the command line."""
    problems = unknown_variables(SETTINGS, environ)
    try:
        parse_argv(("--model-repository=/",), environ)
    except BadSetting as error:
        problems.append(error.message)
    for text in problems:
        yield Finding("settings", text, False, "correct it")
    if not problems:
        text = "no service is installed, and EDGE_SERVE_MODEL_REPOSITORY is not set: nothing to check"
        yield Finding("settings", text)


def examine_models(installed: Installation) -> Iterator[Finding]:
    """Examine what lies in the configured repositories, and what a crashing server left out."""
    if installed.config is None:
        return
    roots = [Path(path) for path in installed.config.model_repository]
    repository = Repository(roots, namespaced=installed.config.model_namespacing)
    places = ", ".join(map(str, roots))
    try:
        found = repository.scan()
    except EdgeServeError as error:
        yield Finding("models", error.message, False, "edge-serve check-config says more")
        return
    if found:
        options = [f"--backend-config={one.text}" for one in without_cache(installed.config.backend_config)]
        if "backend_directory" in installed.config.given:
            options.append(f"--backend-directory={installed.config.backend_directory}")
        command = shlex.join(["edge-serve", "check", *options, *map(str, roots)])
        yield Finding("models", f"{len(found)} in {places}", True, f"{command} loads each of them")
    else:
        yield Finding("models", f"none in {places}", None, "copy a model there, or: edge-serve init MODEL")
    for name, reason in list(repository.faults.items())[:_MOST_NAMED]:
        yield Finding("models", f"{name}: {reason}", False, "correct it, or remove the entry")
    yield from _left_out(installed.state_directory)


def _left_out(directory: str) -> Iterator[Finding]:
    if not directory:
        return
    try:
        record = safe_mode.read(Path(directory))
    except FileNotFoundError:
        return
    except OSError as error:
        yield Finding("safe mode", f"{error.filename}: {error.strerror}", None, "sudo edge-serve doctor")
        return
    if record.left_out and not record.trying:
        text = f"left out after crashes: {', '.join(sorted(record.left_out))}"
        yield Finding("safe mode", text, False, "edge-serve safe-mode shows why, --leave loads them")


def ask_server(
    environ: Mapping[str, str], ports: Sequence[DoorPort], named: Mapping[str, str]
) -> tuple[dict[str, Any] | None, Finding]:
    """Return the status document of the running server, and what there is to say about asking it.

    Args:
        ports: those in the settings, of which the first one is asked where there are neither a socket nor a URL.
        named: the server, as arguments of `find_target`.
    """
    try:
        target = find_target(environ, **named)
        if not named.get("url") and not target.socket and ports:
            if not is_local(ports[0]):
                text = f"not asked: the settings name '{ports[0].address}', which is no address of this machine"
                return None, Finding("server", text)
            target = replace(target, url=ports[0].url)
        return (document := fetch(target, _ASK_SECONDS)), _running(document)
    except Unreachable as error:
        return None, Finding("server", str(error))


def _running(document: Mapping[str, Any]) -> Finding:
    server = document.get("server", {})
    state, models = server.get("state"), document.get("models", [])
    ready = sum(one.get("state") == "READY" or one.get("condition") == "ready" for one in models)
    text = f"{state}, {ready} of {len(models)} models ready (pid {server.get('pid')})"
    if state == "ready":
        return Finding("server", text, True)
    reason = server.get("reason") or ", ".join(server.get("waiting_for") or [])
    return Finding("server", f"{text}: {reason}" if reason else text, False, "edge-serve status shows why")


def examine_versions(document: Mapping[str, Any]) -> Iterator[Finding]:
    """Compare the versions that the running server has loaded with those that are installed now."""
    now, running = library_versions(), document.get("versions", {})
    changed = [f"{name} {version}, installed is {now[name]}" for name, version in running.items()
               if name in now and name != "python" and now[name] != version]  # fmt: skip
    if changed:
        text = f"the server runs {'; '.join(changed)}"
        yield Finding("versions", text, False, "systemctl restart edge-serve (no request is lost)")
    else:
        yield Finding("versions", f"the server runs what is installed: edge-serve {running.get('edge-serve')}", True)
