"""`report`: summarizes the reports of devices. Also the gate's flags of `rollout step` and `rollout watch`."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ota.errors import UsageError
from ota.publish.commands import Subcommands, add, read_published

if TYPE_CHECKING:
    from ota.decide.gate import GateLimits, GateRuling
    from ota.documents.rollout import BundleRollout, Rollout
    from ota.publish.repository import RepositoryState
    from ota.publish.workspace import Workspace

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def add_parsers(subcommands: Subcommands) -> None:
    """Add the subcommand."""
    parser = add(subcommands, "report", _report, "sum up the reports of devices", publishes=False)
    parser.add_argument("place", nargs="+", metavar="DIR|URL", help="where devices put their reports")
    parser.add_argument("--fleet", default="", help="this fleet only")
    parser.add_argument("--silent", default="48h", metavar="TIME", help="after which a device counts as silent (48h)")
    parser.add_argument("--json", action="store_true", help="print it as JSON")


def add_gate_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the gate."""
    group = parser.add_argument_group("the gate: asked before more devices get the release")
    group.add_argument(
        "--reports", action="append", default=[], metavar="DIR|URL", help="where devices put their reports"
    )
    group.add_argument("--prometheus", default="", metavar="URL", help="a Prometheus that scrapes the fleet")
    group.add_argument(
        "--select", default="", metavar="MATCHERS", help="""labels of the fleet there: 'fleet="plant"'"""
    )
    group.add_argument("--success", metavar="PERCENT", help="share of the included devices that must be good (95%%)")
    group.add_argument("--errors", metavar="PERCENT", help="share that may fail; above it the rollout is halted (2%%)")
    group.add_argument("--soak", metavar="TIME", help="how long they must have been good: 30m, 24h, 2d (24h)")
    group.add_argument("--silent", metavar="TIME", help="ignore reports older than this (48h)")


def rule_of(
    arguments: argparse.Namespace, workspace: Workspace, state: RepositoryState, rollout: Rollout
) -> GateRuling | None:
    """Return the ruling of the gate; None = the flags name no source of evidence.

    Raises:
        UsageError: a flag has another form, or there is a limit without a place to ask.
    """
    from ota.publish.reports.gate import Evidence, rule
    from ota.publish.rollouts import wish_of

    bounds = _bounds(arguments)
    if not arguments.reports and not arguments.prometheus:
        given = [one for one in ("success", "errors", "soak", "silent", "select") if getattr(arguments, one)]
        if given:
            raise UsageError(f"--{given[0]} needs --reports DIR|URL or --prometheus URL, the gate's evidence")
        return None
    evidence = Evidence(tuple(arguments.reports), arguments.prometheus, arguments.select)
    return rule(workspace, state, rollout, wish_of(rollout, arguments.bundle), evidence, bounds, time.time())


def _bounds(arguments: argparse.Namespace) -> GateLimits:
    from ota.decide.gate import GateLimits

    return GateLimits(
        parse_percent("--success", arguments.success or "95%"),
        parse_percent("--errors", arguments.errors or "2%"),
        parse_duration("--soak", arguments.soak or "24h"),
        parse_duration("--silent", arguments.silent or "48h"),
    )


def parse_percent(flag: str, text: str) -> float:
    """Return the share of `95%` or `95`. Raises UsageError."""
    if not re.fullmatch(r"\d{1,3}(\.\d+)?%?", text) or float(text.rstrip("%")) > 100:
        raise UsageError(f"{flag}: found {text!r}, expected a percentage such as 95%")
    return float(text.rstrip("%")) / 100


def parse_duration(flag: str, text: str) -> float:
    """Return the seconds of `90s`, `30m`, `24h`, `2d`. Raises UsageError."""
    if not re.fullmatch(r"\d{1,6}[smhd]|0", text):
        raise UsageError(f"{flag}: found {text!r}, expected a time such as 30m, 24h, or 2d")
    return int(text.rstrip("smhd")) * _UNITS.get(text[-1], 1.0)


def _report(arguments: argparse.Namespace) -> int:
    from ota.publish.reports.collect import collect
    from ota.publish.reports.history import ReportHistory
    from ota.publish.reports.summary import document, lines, summarize
    from ota.publish.rollouts import read_devices
    from ota.publish.workspace import acquire_lock

    silent = parse_duration("--silent", arguments.silent)
    workspace, state = read_published(arguments)
    every = read_devices(workspace, state)
    devices = {name: one for name, one in every.items() if arguments.fleet in ("", one.fleet)}
    if arguments.fleet and not devices:
        raise UsageError(f"the fleet {arguments.fleet} has no device: 'edge-ota publish device list' shows all")
    collected = collect(arguments.place, every)
    with acquire_lock(workspace.path):
        memory = ReportHistory(workspace.path)
        forked = memory.take(collected.genuine)
        memory.save()
    found = summarize(devices, collected, forked, silent, time.time())
    if arguments.json:
        print(json.dumps(document(found, collected.problems), indent=2))
    else:
        print("\n".join(lines(found, silent)))
        for problem in collected.problems:
            print(f"warning: {problem}", file=sys.stderr)
    return 0


def shares(rollout: Rollout, bundle: str, devices: Any, steps: dict[str, float]) -> list[str]:
    """Return a line for each ring: how many devices the rollout includes, and how many the steps would add. The last
    line says what the other devices get.
    """
    from ota.decide.gate import is_included
    from ota.publish.rollouts import merge_shares, wish_of

    wish = wish_of(rollout, bundle)
    after = merge_shares(wish, steps)
    found = []
    for ring in sorted({one.ring for one in devices}):
        those = [one for one in devices if one.ring == ring]
        now = {one.device for one in those if is_included(wish, one)}
        then = {one.device for one in those if is_included(after, one)}
        text = f"{ring}: {len(now)} of {len(those)} devices"
        if then != now:
            names = sorted(then - now)
            text += f", then {len(then)}; new: {', '.join(names[:10])}" + (" ..." if len(names) > 10 else "")
        found.append(text)
    others = sorted({one.ring for one in devices if wish.paused or not is_included(after, one)})
    if others:
        found.append(_share_of_others(after, others))
    return found


def _share_of_others(wish: BundleRollout, rings: Sequence[str]) -> str:
    from ota.publish.rollouts import describe_previous

    before = describe_previous(wish, rings)
    if wish.paused:
        return f"halted: no further device gets {wish.want}; one without any release gets {before}"
    text = "without any gets none" if before == "none" else f"with an older one or none gets {before}"
    return f"the others keep their release; one {text}"
