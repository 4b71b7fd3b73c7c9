"""Decides which variant of a release a device runs, with the reason for each that does not fit.

A constraint has alternatives, separated by `|`. An alternative has conditions, separated by `,`: `>=6.1,<6.3`,
`==10.3.0.30`, `aarch64`. A fact with several values (two GPUs) must match with each value. The publisher refuses
variants that no device can use (`find_faults`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ota.documents.manifest import Manifest, Variant

_CONDITION = re.compile(r"\s*(==|!=|>=|<=|>|<)?\s*([^\s|,]+(?: [^\s|,]+)*)\s*")
_OPERATORS = {
    "==": frozenset({0}), "!=": frozenset({-1, 1}), ">=": frozenset({0, 1}), "<=": frozenset({-1, 0}),
    ">": frozenset({1}), "<": frozenset({-1}),
}  # fmt: skip
Order = Literal[-1, 0, 1]
#: options of `edge-serve build` that a release may give: precisions and shapes, without paths
_BUILD_OPTION = re.compile(r"--(?:fp16|bf16|int8|best|no-tf32|(?:min|opt|max)-shapes=[a-zA-Z0-9=:,._x*-]*)")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A variant, and why this device cannot run it; "" = it can."""

    variant: Variant
    why_not: str = ""


def candidates(manifest: Manifest, facts: Mapping[str, str], bad: Mapping[str, str] | None = None) -> list[Candidate]:
    """Return all variants of a release by priority. The first one without a `why_not` is the one to run.

    Args:
        facts: of `edge-serve doctor --json`, and the labels of the device as `label.NAME`.
        bad: variant -> why it failed on this device before.
    """
    ordered = sorted(manifest.variants, key=lambda one: one.priority)
    return [Candidate(one, _why_not(manifest, one, facts, bad or {})) for one in ordered]


def find_faults(manifest: Manifest) -> list[str]:
    """Return a sentence for each fault of a variant because of which no device can use it, or an alternative of it."""
    found = []
    for variant in manifest.variants:
        reasons = [
            f"no device meets the condition {fact} {condition!r}: expected such as '>=7.5', '8.6|8.7', or 'aarch64'"
            for fact, constraint in variant.match.items()
            for condition in re.split("[|,]", constraint)
            if _parse(condition) is None
        ]
        if why := reason_unbuildable(manifest, variant):
            reasons.append(why)
        found += [f"variant {variant.id}: {reason}" for reason in reasons]
    return found


def reason_unbuildable(manifest: Manifest, variant: Variant) -> str:
    """Return why the plans of a variant cannot be built, on any device; "" = they can be."""
    for build in variant.build:
        if all(one.path != build.onnx for one in manifest.files_of(variant, build.model)):
            return f"it builds {build.plan} of {build.model} from {build.onnx}, which {build.model} lacks"
        for option in build.options:
            if not is_build_option(option):
                return f"the option {option!r} of its build is not known: use a newer edge-ota, or another variant"
    return ""


def is_build_option(found: object) -> bool:
    """Return whether a release may give this option to `edge-serve build`."""
    return isinstance(found, str) and bool(_BUILD_OPTION.fullmatch(found))


def reason_too_old(manifest: Manifest, agent: str, server: str) -> str:
    """Return why a release needs newer programs; "" = it does not."""
    for program, needed, found in (
        ("edge-ota", manifest.needs_agent, agent),
        ("edge-serve", manifest.needs_server, server),
    ):
        if needed and (not found or compare(found, needed) < 0):
            return f"it needs {program} {needed} or newer, and this is {found or 'unknown'}: update {program} first"
    return ""


def _why_not(manifest: Manifest, variant: Variant, facts: Mapping[str, str], bad: Mapping[str, str]) -> str:
    if variant.id in bad:
        return f"it failed on this device: {bad[variant.id]}"
    if why := reason_unbuildable(manifest, variant):
        return why
    for fact, constraint in variant.match.items():
        if fact not in facts:
            return f"this device has no {fact}, expected {constraint}"
        for value in facts[fact].split(","):
            if not matches(value, constraint):
                return f"{fact} is {value}, expected {constraint}"
    memory = facts.get("gpu_memory_bytes") or facts.get("memory_bytes")
    if variant.memory_bytes and memory and int(memory) < variant.memory_bytes:
        return f"it needs {variant.memory_bytes >> 20} MiB, and this device has {int(memory) >> 20} MiB"
    return ""


def matches(value: str, constraint: str) -> bool:
    """Return whether a fact matches a constraint. No fact matches a constraint that cannot be parsed."""
    return any(all(_holds(value, one) for one in alternative.split(",")) for alternative in constraint.split("|"))


def _holds(value: str, condition: str) -> bool:
    parsed = _parse(condition)
    if parsed is None:
        return False
    operator, wanted = parsed
    if operator in ("==", "!="):
        return (compare(value, wanted) == 0 or value == wanted) is (operator == "==")
    return _numbers(value) is not None and compare(value, wanted) in _OPERATORS[operator]


def _parse(condition: str) -> tuple[str, str] | None:
    """Return operator and value of a condition; None = it cannot be parsed, as `=>7.5`, `10..3`, or `>=new`."""
    found = _CONDITION.fullmatch(condition)
    if found is None or found[2][0] in "=!<>~":
        return None
    operator, wanted = found[1] or "==", found[2]
    is_version = operator not in ("==", "!=") or re.fullmatch(r"[\d.]+", wanted)
    return None if is_version and _numbers(wanted) is None else (operator, wanted)


def compare(one: str, other: str) -> Order:
    """Compare versions number by number: 10.3 is newer than 9.9, and 6.1 is 6.1.0. Text is equal or less."""
    left, right = _numbers(one), _numbers(other)
    if left is None or right is None:
        return 0 if one == other else -1
    length = max(len(left), len(right))
    first, second = _padded(left, length), _padded(right, length)
    return 0 if first == second else 1 if first > second else -1


def _padded(numbers: Sequence[int], length: int) -> list[int]:
    return [*numbers, *[0] * (length - len(numbers))]


def _numbers(text: str) -> list[int] | None:
    """Return [6, 1] for `6.1+b77` or `6.1`; None = not a version."""
    found = re.fullmatch(r"(\d+(?:\.\d+)*)(?:[+-][\w.]+)?", text.strip()) if len(text) < 64 else None
    return [int(part) for part in found[1].split(".")] if found else None
