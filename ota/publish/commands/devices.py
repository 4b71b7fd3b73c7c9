"""`device add|import|list|remove`: manages the devices, with the fleet and ring of each."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from ota.errors import UsageError
from ota.publish.commands import Subcommands, add, open_workspace, print_result, read_published


def add_parsers(subcommands: Subcommands) -> None:
    """Add the subcommands."""
    text = "which devices there are"
    actions = subcommands.add_parser("device", help=text, description=text).add_subparsers(metavar="ACTION")
    actions.required = True
    new = add(actions, "add", _add, "sign which fleet and ring a device belongs to")
    new.add_argument("name", metavar="NAME")
    new.add_argument("--fleet", required=True)
    new.add_argument("--ring", required=True)
    new.add_argument("--label", action="append", default=[], metavar="NAME=TEXT", help="for constraints of variants")
    new.add_argument("--key", type=Path, metavar="FILE", help="the device's public key, which makes its reports count")
    new.add_argument(
        "--change",
        action="store_true",
        help="the device is known: move it; it keeps key and labels where none are given",
    )
    new.add_argument("--out", type=Path, metavar="FILE", help="write device.json there, too, for the device")
    many = add(actions, "import", _import, "sign many devices at once")
    many.add_argument(
        "file", type=Path, metavar="CSV", help="columns device, fleet, ring, fingerprint; others are labels"
    )
    many.add_argument("--change", action="store_true", help="update known devices from the file")
    add(actions, "list", _list, "list the devices", publishes=False)
    gone = add(actions, "remove", _remove, "remove a device: it gets no more releases")
    gone.add_argument("name", metavar="NAME")


def _add(arguments: argparse.Namespace) -> int:
    from ota import files
    from ota.documents.device import DeviceDocument
    from ota.publish.rollouts import add_devices, device_data, find_new_fleets, fingerprint_of

    labels = {}
    for one in arguments.label:
        name, equals, text = one.partition("=")
        if not equals or not name:
            raise UsageError(f"--label {one!r}: expected NAME=TEXT, such as site=hall-3")
        labels[name] = text
    fingerprint = fingerprint_of(arguments.key) if arguments.key else ""
    document = DeviceDocument(arguments.name, arguments.fleet, arguments.ring, labels, fingerprint)
    with open_workspace(arguments) as (workspace, state):
        new = find_new_fleets(workspace, state, [document])
        waiting = add_devices(workspace, state, [document], arguments.change, time.time())
        _print_notes(new)
        if arguments.out:
            files.write_durably(arguments.out, device_data(document))
        done = f"published: {arguments.name} in ring {arguments.ring} of {arguments.fleet}"
        return print_result(
            workspace, waiting, done + (f"; the device may get {arguments.out}" if arguments.out else "")
        )


def _print_notes(texts: list[str]) -> None:
    for text in texts:
        print(f"note: {text}")


def _import(arguments: argparse.Namespace) -> int:
    from ota.publish.rollouts import add_devices, find_new_fleets, read_devices_csv

    documents = read_devices_csv(arguments.file)
    with open_workspace(arguments) as (workspace, state):
        new = find_new_fleets(workspace, state, documents)
        waiting = add_devices(workspace, state, documents, arguments.change, time.time())
        _print_notes(new)
        return print_result(workspace, waiting, f"published: {len(documents)} devices")


def _list(arguments: argparse.Namespace) -> int:
    from ota.publish.rollouts import read_devices

    for device, one in sorted(read_devices(*read_published(arguments)).items()):
        labels = "".join(f" {name}={text}" for name, text in sorted(one.labels.items()))
        print(f"{device}: {one.fleet} {one.ring}{labels} {one.fingerprint[:16] or 'no key'}")
    return 0


def _remove(arguments: argparse.Namespace) -> int:
    from ota.publish.rollouts import remove_device

    with open_workspace(arguments) as (workspace, state):
        waiting = remove_device(workspace, state, arguments.name, time.time())
        return print_result(workspace, waiting, f"published: {arguments.name} is removed from this repository")
