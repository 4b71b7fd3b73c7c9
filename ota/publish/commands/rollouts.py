"""`rollout start|step|watch|simulate|halt|resume|deny|pin|show`: decides which devices of a fleet get which release."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ota.documents.names import SYSTEM
from ota.errors import OtaError, RolloutHalted, StepNotAllowed, UsageError
from ota.publish.commands import Subcommands, add, confirm, open_workspace, print_result, read_published
from ota.publish.commands.reports import add_gate_flags, rule_of, shares

if TYPE_CHECKING:
    from ota.documents.rollout import BundleRollout, Rollout
    from ota.publish.repository import RepositoryState
    from ota.publish.workspace import Workspace

Edit = Callable[["Workspace", "RepositoryState", "Rollout"], "Rollout"]


def add_parsers(subcommands: Subcommands) -> None:
    """Add the subcommands."""
    text = "which devices of a fleet get which release"
    actions = subcommands.add_parser("rollout", help=text, description=text).add_subparsers(metavar="ACTION")
    actions.required = True
    start = _action(actions, "start", _start, "let a fleet have a release, ring by ring")
    start.add_argument("release", type=int, metavar="RELEASE")
    start.add_argument("steps", nargs="+", metavar="RING=PERCENT", help="such as lab=100 prod=5")
    start.add_argument("--window", metavar="HH:MM-HH:MM", help="when devices may switch, in their local time")
    start.add_argument("--not-before", metavar="TIME", help="UTC, such as 2026-11-22T02:00:00Z; '' = at once")
    start.add_argument("--family", default="", help="needed if several families have this bundle")
    start.add_argument("--spread", type=int, metavar="SECONDS", help="devices of the fleet start within this time")
    start.add_argument("--report-url", metavar="URL", help="where devices of the fleet PUT their reports")
    _add_unknown_flag(start)
    step = _action(actions, "step", _step, "let more devices have it")
    step.add_argument("steps", nargs="+", metavar="RING=PERCENT")
    _add_unknown_flag(step)
    add_gate_flags(step)
    watch = _action(actions, "watch", _watch, "ask the gate; halt the rollout if too many devices failed; for cron")
    add_gate_flags(watch)
    text = "show how many devices have the release, and get it by a step"
    simulate = _action(actions, "simulate", _simulate, text, publishes=False)
    simulate.add_argument("steps", nargs="*", metavar="RING=PERCENT")
    _action(actions, "halt", _halt, "stop: no further device switches; those that have switched stay")
    _action(actions, "resume", _resume, "go on after a halt")
    deny = _action(actions, "deny", _deny, "forbid a release: devices that run it go back")
    deny.add_argument("release", type=int, metavar="RELEASE")
    deny.add_argument("--allow", action="store_true", help="allow the release again")
    deny.add_argument("--yes", action="store_true", help="deny it without a question, also if devices then serve none")
    pin = _action(actions, "pin", _pin, "hold one device at a release")
    pin.add_argument("device", metavar="DEVICE")
    pin.add_argument("release", type=int, metavar="RELEASE", help="0 = as the others again")
    _add_unknown_flag(pin)
    show = add(actions, "show", _show, "show the rollouts of a fleet, or of all", publishes=False)
    show.add_argument("fleet", nargs="?", metavar="FLEET")


def _action(
    actions: Any, name: str, run: Callable[[argparse.Namespace], int], text: str, *, publishes: bool = True
) -> Any:
    parser = add(actions, name, run, text, publishes=publishes)
    parser.add_argument("fleet", metavar="FLEET")
    parser.add_argument("bundle", metavar="BUNDLE", help=f"a bundle, or '{SYSTEM}' for the devices' system")
    return parser


def _add_unknown_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--allow-unknown", action="store_true", help="for a fleet, ring, or device that is added to the devices later"
    )


def _change(arguments: argparse.Namespace, edit: Edit, done: str) -> int:
    from ota.publish.rollouts import find_unknown_names, parse_steps, read_devices, read_fleet, write_fleet

    with open_workspace(arguments) as (workspace, state):
        rollout = read_fleet(workspace, state, arguments.fleet)
        devices = list(read_devices(workspace, state).values())
        rings = parse_steps(getattr(arguments, "steps", []))
        device = arguments.device if getattr(arguments, "device", "") and arguments.release else ""  # 0 unpins
        unknown = find_unknown_names(rollout.fleet, devices, rings, device)
        if unknown and devices and not getattr(arguments, "allow_unknown", True):
            raise UsageError(
                f"{'; '.join(unknown)}: nothing is published; correct the name, or write --allow-unknown for devices "
                "that are added later"
            )
        rollout = edit(workspace, state, rollout)
        waiting = write_fleet(workspace, state, rollout, time.time())
        status = print_result(
            workspace, waiting, f"published: serial {rollout.serial + 1} of {arguments.fleet}: {done}"
        )
        for note in unknown:
            print(f"note: {note}")
        return status


def _start(arguments: argparse.Namespace) -> int:
    from ota.publish.rollouts import parse_steps, parse_time, read_devices, start, wish_of, with_wish

    def edit(workspace: Workspace, state: RepositoryState, rollout: Rollout) -> Rollout:
        family = _checked_family(arguments, workspace, state)
        devices = list(read_devices(workspace, state, rollout.fleet).values())
        steps = parse_steps(arguments.steps)
        rollout = start(rollout, family, arguments.bundle, arguments.release, steps, devices, time.time())
        wish = wish_of(rollout, arguments.bundle)
        if arguments.window is not None:
            wish = replace(wish, window=arguments.window)
        if arguments.not_before is not None:
            wish = replace(wish, not_before=parse_time(arguments.not_before) if arguments.not_before else 0.0)
        if arguments.spread is not None:
            rollout = replace(rollout, spread_seconds=arguments.spread)
        if arguments.report_url is not None:
            rollout = replace(rollout, report_url=arguments.report_url)
        if wish.paused:
            print(f"{wish.bundle} {wish.want} is still halted: 'edge-ota publish rollout resume' comes first")
        return with_wish(rollout, wish)

    return _change(arguments, edit, f"{arguments.bundle} {arguments.release} for {' '.join(arguments.steps)}")


def _checked_family(arguments: argparse.Namespace, workspace: Workspace, state: RepositoryState) -> str:
    """Return the family of a bundle, or the product of the system, whose release is published."""
    from ota.publish.release import find_family
    from ota.publish.rollouts import check_release
    from ota.publish.system.publish import check_version, find_product

    if arguments.bundle == SYSTEM:
        product = arguments.family or find_product(workspace, state)
        check_version(workspace, state, product, arguments.release)
        return str(product)
    family = arguments.family or find_family(state, arguments.bundle)
    check_release(workspace, state, family, arguments.bundle, arguments.release)
    return str(family)


def _step(arguments: argparse.Namespace) -> int:
    from ota.publish.rollouts import parse_steps, read_fleet, step, wish_of

    steps = parse_steps(arguments.steps)
    done = f"{arguments.bundle} for {' '.join(arguments.steps)}"
    space, published = read_published(arguments)
    seen = read_fleet(space, published, arguments.fleet)
    step(seen, arguments.bundle, steps)  # refuses steps that no gate can allow
    why = _ask_gate(arguments, space, published, seen)

    def edit(workspace: Workspace, state: RepositoryState, rollout: Rollout) -> Rollout:
        if why:
            _check_unchanged(wish_of(seen, arguments.bundle), rollout)
            print(f"allowed: {why}")
        return step(rollout, arguments.bundle, steps)

    return _change(arguments, edit, done)


def _watch(arguments: argparse.Namespace) -> int:
    from ota.publish.rollouts import read_fleet, wish_of

    workspace, state = read_published(arguments)
    rollout = read_fleet(workspace, state, arguments.fleet)
    if wish_of(rollout, arguments.bundle).paused:
        print(f"{arguments.bundle}: the rollout is halted")
        return 0
    why = _ask_gate(arguments, workspace, state, rollout)
    if not why:
        raise UsageError("rollout watch needs --reports DIR|URL or --prometheus URL, the gate's evidence")
    print(f"the next step is allowed: {why}")
    return 0


def _ask_gate(arguments: argparse.Namespace, workspace: Workspace, state: RepositoryState, rollout: Rollout) -> str:
    """Ask the gate. Return its reason to allow the next step; "" = the flags name no source of evidence. The workspace
    is not locked meanwhile, because a web server may take minutes to deliver the reports.

    Raises:
        StepNotAllowed: it does not allow it. RolloutHalted: too many devices failed; the rollout is paused, or the
            message says why it is not yet.
    """
    from ota.decide.gate import GateDecision
    from ota.publish.rollouts import wish_of

    ruling = rule_of(arguments, workspace, state, rollout)
    if ruling is None:
        return ""
    if ruling.answer is GateDecision.WAIT:
        raise StepNotAllowed(f"{arguments.bundle}: the next step is not allowed yet: {ruling.why}")
    if ruling.answer is GateDecision.HALT:
        outcome = _publish_halt(arguments, wish_of(rollout, arguments.bundle))
        raise RolloutHalted(
            f"{arguments.bundle}: the rollout is {outcome}: {ruling.why}. Devices that have the release keep it: "
            "'rollout deny' removes it, and after a halt 'rollout resume' continues"
        )
    return ruling.why


def _check_unchanged(seen: BundleRollout, rollout: Rollout) -> None:
    """Refuse a ruling on a rollout that another command has changed since.

    Raises:
        StepNotAllowed: it has.
    """
    if rollout.wishes().get(seen.bundle) != seen:
        raise StepNotAllowed(
            f"{seen.bundle}: another command changed the rollout while the evidence was collected: repeat this one"
        )


def _publish_halt(arguments: argparse.Namespace, seen: BundleRollout) -> str:
    """Publish a halt. Return the outcome, also that it failed: the decision of the gate is never lost.

    Args:
        seen: the rollout for which the gate decided it.

    Raises:
        StepNotAllowed: the rollout is another one by now.
    """
    then = f"'rollout halt {arguments.fleet} {arguments.bundle}'"
    try:
        with open_workspace(arguments) as (workspace, state):
            return _halt_seen(arguments, workspace, state, seen, then)
    except StepNotAllowed:
        raise
    except OtaError as error:
        return f"not halted yet ({error.message}; then {then})"


def _halt_seen(
    arguments: argparse.Namespace, workspace: Workspace, state: RepositoryState, seen: BundleRollout, then: str
) -> str:
    from ota.publish.rollouts import find_waiting, halt, read_fleet, write_fleet

    rollout = read_fleet(workspace, state, arguments.fleet)
    _check_unchanged(seen, rollout)
    if (waiting := find_waiting(workspace, rollout.fleet, time.time())) is not None:
        wish = waiting.wishes().get(seen.bundle)
        if wish is not None and wish.paused:
            return "halted when its signatures are collected"
        return (
            f"not halted yet, because another change of {rollout.fleet} waits for signatures (do not collect it: "
            f"'request --discard' drops it, then {then} halts)"
        )
    missing = write_fleet(workspace, state, halt(rollout, seen.bundle, True), time.time())
    print_result(workspace, missing, f"published: serial {rollout.serial + 1} of {rollout.fleet}: halted")
    return "halted when its signatures are collected" if missing else "halted"


def _simulate(arguments: argparse.Namespace) -> int:
    from ota.publish.rollouts import parse_steps, read_devices, read_fleet

    steps = parse_steps(arguments.steps)
    workspace, state = read_published(arguments)
    rollout = read_fleet(workspace, state, arguments.fleet)
    devices = read_devices(workspace, state, arguments.fleet).values()
    print("\n".join(shares(rollout, arguments.bundle, devices, steps)) or f"{arguments.fleet} has no device")
    return 0


def _halt(arguments: argparse.Namespace) -> int:
    from ota.publish.rollouts import halt

    return _change(
        arguments, lambda workspace, state, rollout: halt(rollout, arguments.bundle, True), f"{arguments.bundle} halted"
    )


def _resume(arguments: argparse.Namespace) -> int:
    from ota.publish.rollouts import halt

    return _change(
        arguments,
        lambda workspace, state, rollout: halt(rollout, arguments.bundle, False),
        f"{arguments.bundle} goes on",
    )


def _deny(arguments: argparse.Namespace) -> int:
    from ota.publish.rollouts import deny, find_unserved, read_devices, wish_of

    release, denied = arguments.release, not arguments.allow

    def edit(workspace: Workspace, state: RepositoryState, rollout: Rollout) -> Rollout:
        changed = deny(rollout, arguments.bundle, release, denied)
        devices = read_devices(workspace, state, rollout.fleet).values()
        wish = wish_of(changed, arguments.bundle)
        unserved = find_unserved(wish, devices, release, time.time())
        unserved_by_older = find_unserved(replace(wish, reached={}), devices, release, time.time())
        if denied and unserved_by_older:
            more = len(unserved_by_older) - len(unserved)
            older = f", and {more} more if their edge-ota is too old to know the release before of each ring"
            print(
                f"{len(unserved)} of {len(devices)} devices of {rollout.fleet} would serve no release of {wish.bundle} "
                f"if they run {release}{older if more else ''}: they may have no other one yet ('rollout show'). Let "
                "them have one first with 'rollout step' or 'rollout start', or deny it all the same."
            )
            if not confirm(f"Deny {wish.bundle} {release}?", arguments.yes):
                raise OtaError(f"nothing was changed: {wish.bundle} {release} is not denied")
        return changed

    return _change(arguments, edit, f"{arguments.bundle} {release} {'denied' if denied else 'allowed again'}")


def _pin(arguments: argparse.Namespace) -> int:
    from ota.publish.rollouts import check_release, pin, wish_of
    from ota.publish.system.publish import check_version

    def edit(workspace: Workspace, state: RepositoryState, rollout: Rollout) -> Rollout:
        if arguments.release:
            family = wish_of(rollout, arguments.bundle).family
            if arguments.bundle == SYSTEM:
                check_version(workspace, state, family, arguments.release)
            else:
                check_release(workspace, state, family, arguments.bundle, arguments.release)
        return pin(rollout, arguments.bundle, arguments.device, arguments.release)

    where = f"pinned to {arguments.release}" if arguments.release else "with the others again"
    return _change(arguments, edit, f"{arguments.device} {where}")


def _show(arguments: argparse.Namespace) -> int:
    from ota.publish.roles import ROLLOUT
    from ota.publish.rollouts import describe_previous, format_time, read_fleet

    workspace, state = read_published(arguments)
    fleets = sorted(one[8:-5] for one in state.targets_of(ROLLOUT) if one.startswith("rollout/"))
    for fleet in [arguments.fleet] if arguments.fleet else fleets:
        rollout = read_fleet(workspace, state, fleet)
        print(f"{fleet}: serial {rollout.serial}" + ("" if rollout.wishes() else ", nothing rolled out"))
        for bundle, wish in sorted(rollout.wishes().items()):
            steps = " ".join(f"{one.ring}={one.percent:g}" for one in wish.steps)
            before = describe_previous(wish)
            more = [f"before {before}"] if before != "none" else []
            more += ["HALTED"] if wish.paused else []
            more += [f"window {wish.window}"] if wish.window else []
            more += [f"not before {format_time(wish.not_before)}"] if wish.not_before else []
            more += [f"denied {', '.join(map(str, sorted(wish.deny)))}"] if wish.deny else []
            more += [f"{device} pinned to {release}" for device, release in sorted(wish.pin.items())]
            print(f"  {bundle} {wish.want}: {steps}" + "".join(f"; {one}" for one in more))
    return 0
