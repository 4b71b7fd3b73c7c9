"""The backend packs: which ones are there, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from edge_serve.backends.packs import install_command
from edge_serve.doctor.finding import Finding
from edge_serve.pack.listing import packs_in


def examine_packs(root: Path) -> Iterator[Finding]:
    """Examine the packs of a backend directory."""
    found = list(packs_in(root))
    for one in found:
        if one.fault:
            yield Finding("pack", one.fault, False, f"edge-serve pack remove {one.name}, if no model needs it")
        else:
            python = f"Python {one.python}" if one.python else "the server's Python"
            yield Finding("pack", f"{one.name} {one.version or 'without a version'}, {python}", True)
    if not found:
        text = f"no backend packs in {root}: models of OpenVINO, PyTorch, or tree libraries are not served"
        yield Finding("pack", text, None, f"{install_command('openvino')} (docs/packs.md)")
