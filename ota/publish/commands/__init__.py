"""The subcommands of `edge-ota publish`, one file for each topic. This file has their common functions.

Each module has `add_parsers(subcommands)`. Heavy libraries are imported when a subcommand runs.

    setup     `init`, `key`, `family`, `role`, `rotate`, `renew`
    releases  `bundle`, `release`, `floor`
    systems   `system`
    rollouts  `rollout ...`
    devices   `device ...`
    reports   `report`, and the flags of the gate
    signing   `request`, `sign`, `collect`
    site      `refresh`, `verify`, `export`, `recover`, `serve`
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ota.errors import RolledBack, Untrusted

if TYPE_CHECKING:
    from ota.publish.change import MissingSignatures
    from ota.publish.keys import Secrets
    from ota.publish.repository import RepositoryState
    from ota.publish.workspace import Workspace

#: in the order of `edge-ota publish --help`
MODULES = ("setup", "releases", "systems", "rollouts", "devices", "reports", "signing", "site")
DIRECTORY = "EDGE_OTA_PUBLISH_DIR"
Subcommands = Any
Run = Callable[[argparse.Namespace], int]


def add(
    subcommands: Subcommands, name: str, run: Run, help_text: str, *, workspace: bool = True, publishes: bool = True
) -> Any:
    """Add a subcommand with the common flags, and return its parser.

    Args:
        workspace: the command works in the publisher's directory.
        publishes: it may publish, so the clock must be right.
    """
    parser = subcommands.add_parser(name, help=help_text, description=help_text[0].upper() + help_text[1:] + ".")
    parser.set_defaults(publish=run, clock_is_right=not publishes)
    if workspace:
        parser.add_argument(
            "--dir",
            dest="workspace",
            type=Path,
            default=Path(os.environ.get(DIRECTORY, ".")),
            metavar="DIR",
            help=f"the publisher's directory (default: {DIRECTORY}, else the current one)",
        )
    if workspace and publishes:
        parser.add_argument(
            "--clock-is-right",
            action="store_true",
            help="publish, though the last publication is days away by the clock of this machine",
        )
    parser.add_argument(
        "--passphrase-file", type=Path, metavar="FILE", help="has the passphrase of the keys on its first line"
    )
    return parser


def add_token_flags(parser: argparse.ArgumentParser, *, existing: bool = True) -> None:
    """Add the flags of a key on a PKCS#11 token."""
    group = parser.add_argument_group("a key on a PKCS#11 token, in place of a file")
    group.add_argument("--pkcs11", metavar="LIBRARY", default="", help="the token's library, such as libsofthsm2.so")
    group.add_argument("--token", metavar="LABEL", default="", help="the token's label")
    group.add_argument("--token-id", type=int, metavar="N", default=2, help="the ID of the key on the token (2)")
    if existing:
        group.add_argument("--existing", action="store_true", help="the key is on the token already")


def secrets_of(arguments: argparse.Namespace) -> Secrets:
    """Return the source of passphrases."""
    from ota.publish.keys import Secrets

    return Secrets(arguments.passphrase_file, none=getattr(arguments, "no_passphrase", False))


@contextmanager
def open_workspace(
    arguments: argparse.Namespace, *, first: bool = False
) -> Iterator[tuple[Workspace, RepositoryState]]:
    """Yield the workspace and the published metadata, with the workspace locked.

    A publication that was interrupted is completed first. A waiting change that is published
    is removed.

    Args:
        first: nothing needs to be published yet.

    Raises:
        OtaError: the clock may be wrong. AlreadyRunning: another command does not end.
        RolledBack: the published files are newer than the state; nothing was written.
    """
    from ota.publish import change, repository, workspace
    from ota.trust import clock_floor

    with workspace.acquire_lock(arguments.workspace):
        space = workspace.read(arguments.workspace, secrets_of(arguments))
        state = _read_newest(space, first=first)
        if state.roots:
            repository.put_metadata(space.repository, state)
            with suppress(Untrusted):  # a damaged one is refused by the commands that read it
                if note := change.remove_published(space, state):
                    print(f"note: {note}", file=sys.stderr)
            if not arguments.clock_is_right:
                change.check_clock(space, state, time.time(), synchronized=clock_floor.is_synchronized())
        yield space, state


def read_published(arguments: argparse.Namespace) -> tuple[Workspace, RepositoryState]:
    """Return the workspace and the published metadata, for a command that only reads.

    It needs no lock, and waits for no other command: documents and blobs are written before the state that names them,
    and stay.

    Raises:
        RolledBack: the published files are newer than the state.
    """
    from ota.publish import workspace

    space = workspace.read(arguments.workspace, secrets_of(arguments))
    with suppress(RolledBack):
        return space, _read_newest(space)
    return space, _read_newest(space)  # perhaps another command has published since the state was read


def _read_newest(space: Workspace, *, first: bool = False) -> RepositoryState:
    """Return the published metadata; with `first`, an empty state if there is none."""
    from ota.publish import repository, verify

    has_state = (space.path / "state.json").exists()
    state = repository.read_state(space.path) if has_state else repository.RepositoryState()
    verify.check_newest(space, state, str(space.path / "state.json"))
    if not has_state and not first:
        repository.refuse_unpublished(space.path)
    return state


def print_result(workspace: Workspace, waiting: Sequence[MissingSignatures], done: str) -> int:
    """Print that a change is published, or which signatures it waits for. Return 0, the exit status of both.

    With keys on other machines, waiting is how each change begins. `request` fails where none waits, for scripts.
    """
    if not waiting:
        print(done)
        return 0
    print("not published yet: the change waits for signatures of keys that are not here")
    for one in waiting:
        names = ", ".join(workspace.key_name(keyid) for keyid in one.keyids)
        print(f"  {one.role}: {one.missing} more of {names}")
    if workspace.expired.exists():
        print(f"note: {workspace.expired} is a change that expired while it waited before", file=sys.stderr)
    print("next: 'edge-ota publish request', then 'sign' where the keys are, then 'collect'")
    return 0


def confirm(question: str, yes: bool) -> bool:
    """Ask at the terminal. `yes` answers in place of the user.

    Raises:
        OtaError: there is no answer in time.
    """
    from ota.publish.keys import ask_in_time

    if yes:
        return True
    if not sys.stdin.isatty():
        print(f"{question} (no terminal to ask: give --yes)", file=sys.stderr)
        return False
    return ask_in_time(f"{question} [y/N] ", input).strip().lower() in ("y", "yes")
