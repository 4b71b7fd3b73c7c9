"""`refresh`, `verify`, `export`, `recover`, `serve`: maintain, check, copy, and serve a repository."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import time
from pathlib import Path

from ota.errors import OtaError, Untrusted, UsageError
from ota.publish.commands import Subcommands, add, open_workspace, read_published, secrets_of


def add_parsers(subcommands: Subcommands) -> None:
    """Add the subcommands."""
    refresh = add(subcommands, "refresh", _refresh, "sign timestamp again, and what is past half of its life; for cron")
    refresh.add_argument(
        "--also", action="append", default=[], metavar="ROLE", help="renew this role, too, past half of its life"
    )

    verify = add(subcommands, "verify", _verify, "check every signature, date, document, and blob", publishes=False)
    verify.add_argument("--repository", type=Path, metavar="DIR", help="check this copy, such as a USB stick")
    verify.add_argument("--root", type=Path, metavar="FILE", help="the root.json to trust, for --repository")
    verify.add_argument("--fleet", default="", help="check only what this fleet needs")

    export = add(subcommands, "export", _export, "copy what a fleet needs to a USB stick", publishes=False)
    export.add_argument("out", type=Path, metavar="DIR")
    export.add_argument("--fleet", required=True)

    recover = add(
        subcommands,
        "recover",
        _recover,
        "go on from a copy of the web server, after a restored backup",
        publishes=False,
    )
    recover.add_argument("--repository", type=Path, required=True, metavar="DIR", help="the copy, complete")
    recover.add_argument("--root", type=Path, required=True, metavar="FILE", help="a root.json that devices have")

    serve = add(subcommands, "serve", _serve, "serve the files over HTTP, for tests", publishes=False)
    serve.add_argument("--repository", type=Path, metavar="DIR", help="serve this copy")
    serve.add_argument("--bind", default="127.0.0.1", metavar="ADDRESS")
    serve.add_argument("--port", type=int, default=8080, help="0 = any free one (8080)")
    serve.add_argument("--no-range", action="store_true", help="answer requests for parts with the whole file")
    serve.add_argument("--reports", type=Path, metavar="DIR", help="keep what devices PUT at /reports there")
    serve.add_argument("--log", action="store_true", help="print requests")


def _refresh(arguments: argparse.Namespace) -> int:
    from ota.publish.repository import join_names
    from ota.publish.rotate import refresh

    with open_workspace(arguments) as (workspace, state):
        done = refresh(workspace, state, arguments.also, time.time())
        print(f"published: {join_names(done.signed)} signed again")
        for warning in done.warnings:
            print(f"warning: {warning}", file=sys.stderr)
        if problems := [*done.expired, *done.failures]:
            raise (Untrusted if done.expired else OtaError)("; ".join(problems))
    return 0


def _verify(arguments: argparse.Namespace) -> int:
    from ota import files
    from ota.publish.verify import check, compare, find_unreadable, load

    if arguments.repository:
        data = files.read(arguments.root) if arguments.root else None
        if data is None:
            raise UsageError("--repository needs --root FILE, the root.json that devices have")
        state = load(arguments.repository, data)
        found = check(arguments.repository, state, time.time(), arguments.fleet)
    else:
        with open_workspace(arguments) as (workspace, known):
            state = load(workspace.repository, known.roots[0].to_bytes())
        found = check(workspace.repository, state, time.time(), arguments.fleet)  # hashes all blobs, without the lock
        found.problems += compare(state, known)
        found.warnings += find_unreadable(workspace.repository)
    print("\n".join(found.facts))
    for warning in found.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    for problem in found.problems[:-1]:
        print(f"problem: {problem}", file=sys.stderr)
    if found.problems:
        raise Untrusted(f"problems: {len(found.problems)}; the last: {found.problems[-1]}")
    systems = sorted(one.title for one in found.systems.values())
    manifests = sorted(found.manifests.values(), key=lambda one: (one.bundle, one.release, one.family))
    releases = ", ".join([found.title_of(one) for one in manifests] + systems) or "none"
    print(f"releases: {releases}")
    print("every signature, document, and blob is as it should be")
    return 0


def _export(arguments: argparse.Namespace) -> int:
    from ota.publish.export import export

    workspace, state = read_published(arguments)
    done = export(workspace, state, arguments.fleet, arguments.out)
    releases = ", ".join(done.releases) or "no releases"
    fleets = f" for the fleets {', '.join(done.fleets)}" if len(done.fleets) > 1 else ""
    print(f"{arguments.out}{fleets}: {releases}; {done.blobs} blobs, {done.new_bytes} new bytes")
    print(f"next: unmount the stick; on a device 'edge-ota import {arguments.out}'")
    return 0


def _recover(arguments: argparse.Namespace) -> int:
    from ota import files
    from ota.publish import workspace
    from ota.publish.export import recover

    data = files.read_given(arguments.root, "the root.json that devices have")
    with workspace.acquire_lock(arguments.workspace):
        space = workspace.read(arguments.workspace, secrets_of(arguments))
        state, missing = recover(space, arguments.repository, data)
        found = f"root {state.version('root')}, timestamp {state.version('timestamp')}"
        lacks = f"; documents and blobs that the copy lacks or has damaged: {len(missing)}" if missing else ""
        print(f"recovered: {found}{lacks}; go on with 'verify'")
    return 0


def _serve(arguments: argparse.Namespace) -> int:
    from ota import files
    from ota.publish.serve import RepositoryServer

    repository = arguments.repository or arguments.workspace / "repository"
    if not (repository / "metadata").is_dir():
        raise UsageError(f"{repository} is not a repository: it has no metadata/; name one with --repository or --dir")
    if arguments.reports:
        files.make_directory(arguments.reports)
    try:
        server = RepositoryServer(
            (arguments.bind, arguments.port),
            repository,
            ranges=not arguments.no_range,
            log=arguments.log,
            reports=arguments.reports,
        )
    except (OSError, OverflowError) as error:
        told = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"{arguments.bind} port {arguments.port}: {told}; name another --bind or --port") from None
    print(f"serving {repository} at {server.url}", flush=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with server, contextlib.suppress(KeyboardInterrupt):
        server.serve_forever(poll_interval=0.2)
    return 0
