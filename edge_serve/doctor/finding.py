"""One line of the doctor's report, and the report as text or JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from edge_serve import __version__
from edge_serve.messages.line import one_line
from edge_serve.records import frozen

#: of the JSON document; raised when a member changes its meaning or goes
SCHEMA = 1


@frozen
class Finding:
    """One line of the report.

    Attributes:
        good: True = fine, False = needs doing, None = for information.
        advice: what to do about it.
    """

    topic: str
    text: str
    good: bool | None = None
    advice: str = ""


def all_good(findings: Iterable[Finding]) -> bool:
    """Return whether nothing needs doing."""
    return all(finding.good is not False for finding in findings)


def as_text(findings: Sequence[Finding]) -> str:
    """Return the report for people."""
    lines = []
    for finding in findings:
        mark = {True: "ok", False: "!!", None: "--"}[finding.good]
        lines.append(f"{mark}  {finding.topic:<12} {one_line(finding.text)}")
        if finding.advice:
            lines.append(f"{'':16} -> {one_line(finding.advice)}")
    return "\n".join(lines)


def as_document(findings: Sequence[Finding], facts: Mapping[str, str]) -> dict[str, Any]:
    """Return the report for programs (docs/commands.md)."""
    return {
        "schema": SCHEMA,
        "edge_serve": __version__,
        "ok": all_good(findings),
        "facts": dict(facts),
        "findings": [asdict(finding) for finding in findings],
    }
