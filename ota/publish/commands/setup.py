"""`init`, `key`, `family`, `rotate`, `renew`: manage the keys of a repository."""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ota.errors import UsageError
from ota.publish.commands import Subcommands, add, add_token_flags, open_workspace, print_result, secrets_of

if TYPE_CHECKING:
    from ota.publish.keys import KeyPlace, Secrets
    from ota.publish.repository import RepositoryState
    from ota.publish.workspace import Workspace


def add_parsers(subcommands: Subcommands) -> None:
    """Add the subcommands."""
    init = add(subcommands, "init", _init, "make a repository and its keys", workspace=False)
    init.add_argument("workspace", type=Path, metavar="DIR", help="a new directory")
    init.add_argument(
        "--preset",
        choices=("team", "small"),
        default="team",
        help="team: several keys for root, targets and engines, so that no single one suffices; small: one key each",
    )
    init.add_argument("--family", action="append", default=[], metavar="NAME", help="a family of models (repeatable)")
    init.add_argument("--system", action="store_true", help="also publish systems of devices: adds the role system")
    init.add_argument(
        "--public-key",
        action="append",
        default=[],
        metavar="ROLE=FILE",
        help="a public key that was made on another machine; roles without one get new key files here (repeatable)",
    )
    init.add_argument(
        "--expires", action="append", default=[], metavar="ROLE=DAYS", help="how long signatures of a role last"
    )
    _add_key_flags(init)

    key = add(subcommands, "key", _key, "make a key, on the machine where it stays", workspace=False)
    key.add_argument("name", metavar="NAME", help="such as root-alice")
    key.add_argument("--out", type=Path, default=Path(), metavar="DIR", help="where NAME.pem and NAME.pub.json go")
    _add_key_flags(key)
    add_token_flags(key)

    family = add(subcommands, "family", _family, "add a family of models, with a key of its own")
    family.add_argument("name", metavar="NAME")
    family.add_argument("--public-key", type=Path, action="append", default=[], metavar="FILE")
    _add_key_flags(family)
    add_token_flags(family)

    role = add(subcommands, "role", _role, "add a role that this repository lacks, with keys of its own")
    role.add_argument("name", metavar="ROLE", choices=("system",), help="system: who signs the devices' system")
    role.add_argument(
        "--preset", choices=("team", "small"), default="team", help="team: 2 of 3 keys must sign; small: one key"
    )
    role.add_argument("--public-key", type=Path, action="append", default=[], metavar="FILE", help="(repeatable)")
    _add_key_flags(role)

    _add_rotate(subcommands)
    renew = add(subcommands, "renew", _renew, "sign roles again before they expire")
    renew.add_argument("roles", nargs="+", metavar="ROLE")


def _add_rotate(subcommands: Subcommands) -> None:
    rotate = add(
        subcommands,
        "rotate",
        _rotate,
        "change the keys of roles: without flags, new key files here for all; of several roles, a flag names its role",
    )
    rotate.add_argument("roles", nargs="+", metavar="ROLE")
    for flag, value, text in (
        ("--remove", "KEY", "this one goes: by name or ID (repeatable)"),
        ("--add", "FILE", "this public key comes (repeatable)"),
        ("--new", "N", "create N new keys here"),
        ("--threshold", "N", "how many must sign from now on"),
    ):
        rotate.add_argument(flag, action="append", default=[], metavar=f"[ROLE=]{value}", help=text)
    _add_key_flags(rotate)
    add_token_flags(rotate)


def _add_key_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--key-type", choices=("ed25519", "p256"), default="ed25519", help="of new key files")
    parser.add_argument("--no-passphrase", action="store_true", help="new key files are not encrypted")


def _init(arguments: argparse.Namespace) -> int:
    from ota.publish.keys import read_public
    from ota.publish.rotate import InitOptions, start
    from ota.publish.workspace import acquire_lock

    keys: dict[str, list[KeyPlace]] = {}
    for one in arguments.public_key:
        role, equals, file = one.partition("=")
        if not equals:
            raise UsageError(f"--public-key {one!r}: expected ROLE=FILE, such as root=alice.pub.json")
        keys.setdefault(role, []).append(read_public(Path(file)))
    wanted = InitOptions(
        arguments.preset, tuple(arguments.family), keys, _days(arguments.expires), arguments.key_type, arguments.system
    )
    workspace, waiting = start(arguments.workspace, wanted, secrets_of(arguments), time.time())
    with acquire_lock(workspace.path):
        made = sum(bool(one.uri) for one in workspace.keys.values())
        print(f"{workspace.path}: {made} private keys in keys/; copy them to a safe place, each to its own")
        return print_result(
            workspace,
            waiting,
            f"published: a web server serves {workspace.repository}; devices get {workspace.path / 'root.json'}",
        )


def _days(found: list[str]) -> dict[str, float]:
    days = {}
    for one in found:
        role, _, number = one.partition("=")
        try:
            days[role] = float(number)
        except ValueError:
            raise UsageError(f"--expires {one!r}: expected ROLE=DAYS, such as timestamp=30") from None
    return days


def _key(arguments: argparse.Namespace) -> int:
    from ota.publish import keys
    from ota.publish.roles import checked_name

    name, secrets = checked_name(arguments.name, "the key"), secrets_of(arguments)
    if arguments.pkcs11:
        place = _token_key(arguments, name, secrets)
    else:
        signer = keys.generate(arguments.key_type)
        keys.write_private(arguments.out / f"{name}.pem", signer, secrets.fresh(name))
        place = keys.KeyPlace(name, signer.public_key, f"file:{name}.pem")
        print(f"{arguments.out / name}.pem: the private key; it stays on this machine")
    keys.write_public(arguments.out / f"{name}.pub.json", place)
    shown = keys.fingerprint(place.public)
    print(f"{arguments.out / name}.pub.json: the public key, for the publisher; fingerprint {shown}")
    return 0


def _token_key(arguments: argparse.Namespace, name: str, secrets: Secrets) -> KeyPlace:
    from ota.publish.keys import generate_on_token, import_from_token

    if not arguments.token:
        raise UsageError("--pkcs11 needs --token LABEL, the label of the token")
    make = import_from_token if arguments.existing else generate_on_token
    return make(arguments.pkcs11, arguments.token, arguments.token_id, name, secrets)


def _add_public(workspace: Workspace, files: list[Path]) -> list[KeyPlace]:
    """Return the public keys of files, which are in the workspace from now on."""
    from ota.publish.keys import read_public

    return [workspace.add(read_public(one)) for one in files]


def _new_keys(arguments: argparse.Namespace, workspace: Workspace, role: str, count: int) -> list[KeyPlace]:
    """Return new keys of a role: one on a token, or `count` new files."""
    if arguments.pkcs11:
        return [workspace.add(_token_key(arguments, workspace.next_name(role), workspace.secrets))]
    return _new_file_keys(arguments, workspace, role, count)


def _new_file_keys(arguments: argparse.Namespace, workspace: Workspace, role: str, count: int) -> list[KeyPlace]:
    return [workspace.new_file_key(workspace.next_name(role), arguments.key_type) for _ in range(count)]


def _family(arguments: argparse.Namespace) -> int:
    from ota.publish.rotate import add_family, check_family

    with open_workspace(arguments) as (workspace, state):
        role = check_family(workspace, state, arguments.name, time.time())
        places = _add_public(workspace, arguments.public_key) or _new_keys(arguments, workspace, role, 1)
        workspace.save()
        waiting = add_family(workspace, state, arguments.name, places, time.time())
        return print_result(workspace, waiting, f"published: the family {arguments.name}")


def _role(arguments: argparse.Namespace) -> int:
    from ota.publish.roles import PRESETS
    from ota.publish.system.publish import add_role, check_new

    policy = PRESETS[arguments.preset][arguments.name]
    with open_workspace(arguments) as (workspace, state):
        check_new(workspace, state, len(arguments.public_key) or policy.keys, policy.threshold, time.time())
        places = _add_public(workspace, arguments.public_key)
        if not places:
            places = _new_file_keys(arguments, workspace, arguments.name, policy.keys)
        workspace.save()
        waiting = add_role(workspace, state, places, policy.threshold, time.time())
        return print_result(workspace, waiting, f"published: the role {arguments.name}")


@dataclass(frozen=True, slots=True)
class _RoleFlags:
    """The flags of `rotate` for one role; 0 = not given."""

    remove: list[str]
    add: list[KeyPlace]
    new: int
    threshold: int


@dataclass(frozen=True, slots=True)
class _RolePlan:
    """The keys to remove from a role by ID, the number of keys to create for it here, and whether fewer than its
    threshold will be here.
    """

    remove: set[str]
    count: int
    elsewhere: bool


def _rotate(arguments: argparse.Namespace) -> int:
    from ota.publish.repository import join_names
    from ota.publish.rotate import Rotation, check_rotation, rotate

    roles = list(dict.fromkeys(arguments.roles))
    if len(roles) > 1 and arguments.pkcs11:
        raise UsageError("--pkcs11 is for one role: give one")
    flags = {role: _flags_of(arguments, role, roles) for role in roles}
    with open_workspace(arguments) as (workspace, state):
        plans = {role: _plan(arguments, workspace, state, role, flags[role]) for role in roles}
        check_rotation(workspace, state, roles, any(one.elsewhere for one in plans.values()), time.time())
        rotations = []
        for role, plan in plans.items():
            added = [workspace.add(one) for one in flags[role].add]
            added += _new_keys(arguments, workspace, role, plan.count) if plan.count else []
            rotations.append(Rotation(role, tuple(sorted(plan.remove)), tuple(added), flags[role].threshold))
        workspace.save()
        waiting = rotate(workspace, state, rotations, time.time())
        return print_result(workspace, waiting, f"published: new keys of {join_names(roles)}")


def _flags_of(arguments: argparse.Namespace, role: str, roles: list[str]) -> _RoleFlags:
    from ota.publish.keys import read_public

    def values(flag: str) -> list[str]:
        found = []
        for value in getattr(arguments, flag):
            named, equals, rest = value.partition("=")
            if equals and named in roles:
                found += [rest] if named == role else []
            elif len(roles) == 1:
                found.append(value)
            else:
                text = f"--{flag} {value} names no role: write --{flag} ROLE={value}, because several roles are given"
                raise UsageError(text)
        return found

    def number(flag: str) -> int:
        for value in values(flag):
            if not value.isdecimal():
                raise UsageError(f"--{flag} {role}={value}: expected a number")
        return int(values(flag)[-1]) if values(flag) else 0

    new, threshold = number("new"), number("threshold")
    return _RoleFlags(values("remove"), [read_public(Path(one)) for one in values("add")], new, threshold)


def _plan(
    arguments: argparse.Namespace, workspace: Workspace, state: RepositoryState, role: str, flags: _RoleFlags
) -> _RolePlan:
    """Return the change of a role's keys.

    Raises:
        UsageError: there is no such role or key, too few keys would be left, or keys of other machines would be
            replaced by files of this one.
    """
    from ota.publish.change import is_here, keyids_of
    from ota.publish.rotate import check_place, check_replaced, check_role, check_threshold, key_of

    check_role(state, role)
    threshold, keyids = keyids_of(state, role)
    threshold = flags.threshold or threshold
    replace = not (flags.remove or flags.add or flags.new or flags.threshold)
    if replace and not arguments.pkcs11:
        check_replaced(workspace, role, keyids)
    remove = set(keyids) if replace else {key_of(workspace, state, role, one) for one in flags.remove}
    count = len(keyids) if replace else flags.new
    count = 1 if arguments.pkcs11 and count else count
    after = (set(keyids) - remove) | {one.public.keyid for one in flags.add}
    here = sum(is_here(workspace, one) for one in after) + count
    check_threshold(role, len(after) + count, threshold)
    check_place(role, here, threshold)
    return _RolePlan(remove, count, here < threshold)


def _renew(arguments: argparse.Namespace) -> int:
    from ota.publish.repository import join_names
    from ota.publish.rotate import renew

    roles = list(dict.fromkeys(arguments.roles))
    with open_workspace(arguments) as (workspace, state):
        waiting = renew(workspace, state, roles, time.time())
        return print_result(workspace, waiting, f"published: {join_names(roles)} signed again")
