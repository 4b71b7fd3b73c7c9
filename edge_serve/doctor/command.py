"""`edge-serve doctor`: runs the examinations, each with a time limit, and prints what they found."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from edge_serve.commands.options import OptionParser
from edge_serve.config.settings.server import backend_directory
from edge_serve.doctor import service
from edge_serve.doctor.facts import find_facts
from edge_serve.doctor.finding import Finding, all_good, as_document, as_text
from edge_serve.doctor.gpu import examine_devices, examine_gpu
from edge_serve.doctor.jetson import examine_jetson
from edge_serve.doctor.libraries import examine_libraries
from edge_serve.doctor.machine import examine_backends, examine_disks, examine_machine
from edge_serve.doctor.packs import examine_packs
from edge_serve.doctor.ports import examine_port
from edge_serve.models.repository.reading import Reader
from edge_serve.observe.status.command import add_server_options, read_server_options

#: how long one examination may take, seconds: a dead file system or a systemd that hangs must not stop the others
LIMIT_SECONDS = 30.0

Examination = Callable[[], Iterable[Finding]]


def run(arguments: Sequence[str], environ: Mapping[str, str] = os.environ) -> int:
    """Run the command; its exit status."""
    parser = OptionParser(
        "doctor",
        "Examine this machine, the installed service and the running server: what is wrong or missing, and what to do "
        "about it. Nothing is changed. Root sees more: the service's settings, and which program has a port.",
        "Exit status: 0 nothing needs doing, 1 a line marked !! does, 2 wrong use.",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document (docs/commands.md)")
    add_server_options(parser)
    options = parser.parse(arguments)
    findings = examine(environ, read_server_options(options))
    print(json.dumps(as_document(findings, find_facts()), indent=2) if options.json else as_text(findings), flush=True)
    return 0 if all_good(findings) else 1


def examine(environ: Mapping[str, str], named: Mapping[str, str]) -> list[Finding]:
    """Examine everything.

    Args:
        named: the running server, as arguments of `find_target`; all "" = that of the settings.
    """
    packages = [Path(path) for path in sys.path if path]
    findings = limited({
        "machine": examine_machine,
        "backends": examine_backends,
        "gpu": examine_gpu,
        "devices of CUDA": examine_devices,
        "Jetson": examine_jetson,
        "libraries of CUDA": lambda: examine_libraries(packages=packages),
    })  # fmt: skip
    installed = service.Installation()

    def look() -> Iterable[Finding]:
        nonlocal installed
        installed = service.find_installation(environ)
        return service.examine_units(installed)

    findings += limited({"service": look})
    return findings + limited({
        "packs": lambda: examine_packs(Path(backend_directory({**environ, **installed.environ}))),
        "settings": lambda: service.examine_settings(installed, environ),
        "models": lambda: service.examine_models(installed),
        "disks": lambda: examine_disks(_paths(installed)),
        "server and ports": lambda: _examine_server(installed, environ, named),
    })  # fmt: skip


def _examine_server(
    installed: service.Installation, environ: Mapping[str, str], named: Mapping[str, str]
) -> Iterable[Finding]:
    document, finding = service.ask_server({**environ, **installed.environ}, installed.ports, named)
    ports = [examine_port(port, document, installed.held) for port in installed.ports]
    if document is not None:
        return [finding, *service.examine_versions(document), *ports]
    expected = any(named.values()) or any("listens here" in one.text for one in ports)
    return [*([finding] if expected else []), *ports]


def _paths(installed: service.Installation) -> list[str]:
    """Return paths on the disks that the server writes to and reads from."""
    config = installed.config
    named = [*config.model_repository, config.log_file, config.execution_env_directory] if config is not None else []
    return [path for path in [*named, installed.state_directory, "/tmp", "/"] if path]


def limited(examinations: Mapping[str, Examination]) -> list[Finding]:
    """Return what all of them found. One that fails or takes too long is a finding itself."""
    jobs = {name: _collecting(one) for name, one in examinations.items()}
    results = Reader().read_all(jobs, LIMIT_SECONDS)
    findings: list[Finding] = []
    for name in examinations:
        result = results[name]
        if isinstance(result, Exception):
            reason = getattr(result, "message", "") or f"{type(result).__name__}: {result}"
            findings.append(Finding("doctor", f"{name}: could not be examined: {reason}", None, "try it as root"))
        else:
            findings += result
    return findings


def _collecting(examination: Examination) -> Callable[[], list[Finding]]:
    return lambda: list(examination())
