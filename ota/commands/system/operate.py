"""`edge-ota system status|apply|rollback|factory-reset`: the system of a device of the image."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ota.agent.system.state import as_journal, device_status, read_state
from ota.agent.update import UpdateOptions
from ota.commands.apply import report, run_update
from ota.decide.system import SystemState
from ota.documents.names import SYSTEM
from ota.errors import OtaError, StoreError, UsageError
from ota.layout import StateLayout
from ota.server.system_unit import SystemUnit
from ota.settings import AgentSettings
from ota.store import directories, history
from ota.store.history import HistoryEvent
from ota.store.lock import acquire_lock

HELP = "show, update, or reset the system of this device (devices of the image)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    actions.required = True
    for name, text in (
        ("status", "show the running version, the other slot, what waits, and what failed"),
        ("apply", "update the system: refresh, fetch, and install the version that this device should run"),
        ("rollback", "restart into the other good version; the running one is not installed again"),
        ("factory-reset", "erase the data partition: models, keys, and settings; the device restarts"),
    ):
        action = actions.add_parser(name, help=text, description=text)
        if name in ("status", "apply"):
            action.add_argument("--json", action="store_true", help="print it as JSON")
        if name == "apply":
            action.add_argument("--now", action="store_true", help="install now, also outside the hours")
        if name == "factory-reset":
            action.add_argument("--name", default="", help="the device's name; asked for at a terminal if not given")
        if name == "rollback":
            action.add_argument("--why", default="", metavar="TEXT", help="for the history")


def run(arguments: argparse.Namespace, settings: AgentSettings) -> int:
    """Run an action."""
    actions: Mapping[str, Callable[[argparse.Namespace, AgentSettings, SystemState], int]] = {
        "status": _status, "apply": _apply, "rollback": _roll_back, "factory-reset": _factory_reset,
    }  # fmt: skip
    return actions[arguments.action](arguments, settings, read_state(settings.system_root))


def _status(arguments: argparse.Namespace, settings: AgentSettings, state: SystemState) -> int:
    layout, device = StateLayout(settings.state_dir), device_status(settings.system_root)
    if arguments.json:
        print(json.dumps(_document(state, layout, device), indent=2))
    else:
        print("\n".join(_lines(state, layout, device)))
    return 0


def _document(state: SystemState, layout: StateLayout, device: Mapping[str, Any]) -> dict[str, Any]:
    following = as_journal(state, layout).next
    return {
        "product": state.product, "profile": state.profile, "arch": state.arch, "version": state.version,
        "slot": device.get("slot", ""), "confirmed": state.version in state.confirmed,
        "previous": state.previous or None,
        "entries": device.get("entries", []), "bad": {str(one): why for one, why in sorted(state.bad.items())},
        "next": {"version": following.release, "stage": following.stage.value} if following else None,
        "faults": device.get("faults", []),
    }  # fmt: skip


def _lines(state: SystemState, layout: StateLayout, device: Mapping[str, Any]) -> Iterator[str]:
    slot = f", slot {device['slot']}" if device.get("slot") else ""
    known = "good" if state.version in state.confirmed else "not confirmed yet"
    yield f"system: {state.title}{slot}, {'being tried' if state.is_tried else known}"
    for entry in _rows(device, "entries"):
        if str(entry.get("version")) != str(state.version):
            left = f", {entry['left']} starts left" if entry.get("left") is not None else ""
            yield f"other slot: {state.product} {entry.get('version')}, {entry.get('state')}{left}"
    following = as_journal(state, layout).next
    if following is not None and following.release != state.version:
        reason = f": {following.reason}" if following.reason else ""
        yield f"next: {following.release} is {following.stage.value}{reason}"
    if device.get("building"):
        yield f"models: {device['building']}"
    for version, why in sorted(state.bad.items()):
        yield f"failed here: {version}: {why}"
    for fault in _rows(device, "faults"):
        yield f"fault: {fault.get('text')} {fault.get('help') or ''}".rstrip()


def _rows(document: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    found = document.get(name)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _apply(arguments: argparse.Namespace, settings: AgentSettings, state: SystemState) -> int:
    options = UpdateOptions(now=arguments.now, only=(SYSTEM,))
    outcomes = [one for one in run_update(settings, options, "system apply") if one.bundle == SYSTEM]
    if not outcomes and not arguments.json:
        print(f"nothing to do: {state.title} runs, and no rollout of this fleet names a system")
        return 0
    return report(outcomes, settings, as_json=arguments.json)


def _roll_back(arguments: argparse.Namespace, settings: AgentSettings, state: SystemState) -> int:
    version = _ask(settings, SystemUnit(settings.system_root).roll_back, "rollback", arguments.why)
    print(f"{SYSTEM}: the device restarts into {version}; {state.version} is not installed again")
    return 0


def _factory_reset(arguments: argparse.Namespace, settings: AgentSettings, state: SystemState) -> int:
    known = str(device_status(settings.system_root).get("name") or "")
    name = arguments.name
    if not name and sys.stdin.isatty():
        print("This erases the data partition of the device: models, keys, settings, and reports.", file=sys.stderr)
        print("The settings of edge-serve.toml apply again, without its TLS keys and passwords.", file=sys.stderr)
        name = input(f"Type the device's name to confirm{f' ({known})' if known else ''}: ").strip()
    if not name or (known and name != known):
        raise UsageError(
            f"the name is {name!r}, expected that of this device{f', {known!r}' if known else ''}: nothing was erased. "
            "Give it with --name"
        )
    unit = SystemUnit(settings.system_root)
    _ask(settings, lambda: unit.factory_reset(name), "factory-reset")
    print(f"{name}: the device restarts, and erases its data partition then")
    return 0


def _ask(settings: AgentSettings, act: Callable[[], Any], command: str, why: str = "") -> Any:
    """Ask the root side while no other edge-ota works. The machine may stop this process right after the answer.

    If the disk takes neither the lock nor the history, print that and go on: these commands are a way out of such a
    state.
    """
    layout = StateLayout(settings.state_dir)
    with contextlib.ExitStack() as stack:
        with _printed("continuing without the lock on the state, because the disk does not take it"):
            stack.enter_context(acquire_lock(layout, f"system {command}"))
            directories.prepare(layout)
        _note(layout, "switching", why or f"system {command}")
        try:
            return act()
        except OtaError as error:
            _note(layout, "refused", error.message)
            raise


def _note(layout: StateLayout, event: str, message: str) -> None:
    import time

    with _printed("the history lacks an event"):
        history.append(layout, HistoryEvent(time.time(), event, SYSTEM, message=message))


@contextlib.contextmanager
def _printed(what: str) -> Iterator[None]:
    """Print an error of the disk instead of raising it."""
    try:
        yield
    except StoreError as error:
        print(f"edge-ota: {what}: {error.message}", file=sys.stderr)
