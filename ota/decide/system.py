"""Decides which versions of the system a device may install, and when its models must wait for the system."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from ota.documents.system import SystemDocument


@dataclass(frozen=True, slots=True)
class SystemState:
    """The system of a device: the image that runs, and the record of its versions.

    Attributes:
        confirmed: versions that were found good here; () = none yet, or the record is lost.
        bad: version -> why it failed here.
        pending: a version that is being installed, waits for its restart, or is tried; 0 = none.
        previous: the other good one; 0 = none.
        state_schema: the format of the data partition; 0 = unknown.
    """

    product: str
    profile: str
    arch: str
    version: int
    confirmed: tuple[int, ...] = ()
    bad: Mapping[int, str] = field(default_factory=dict)
    pending: int = 0
    previous: int = 0
    state_schema: int = 0

    @property
    def is_tried(self) -> bool:
        """Whether the running version is new here, and there is one to fall back to.

        The root side makes a version pending when it installs it, and ends that when one of the two no longer holds.
        """
        return self.pending == self.version

    @property
    def waiting(self) -> int:
        """The version that is installed, or is being installed, and starts with the next restart; 0 = none."""
        return 0 if self.is_tried else self.pending

    @property
    def title(self) -> str:
        """The name of the running version in messages."""
        return f"{self.product} {self.version} ({self.profile}, {self.arch})"


def reason_models_wait(state: SystemState) -> str:
    """Return why no model may be updated now; "" = it may.

    A model that changes while a system is tried would make the health of the system unknown.
    """
    if state.is_tried:
        return f"system {state.version} is being tried and not yet confirmed; models are updated after that"
    if state.waiting:
        return (
            f"system {state.waiting} is being installed and starts with the next restart; models are updated after it"
        )
    return ""


def version_to_cancel(state: SystemState, version: int) -> int:
    """Return the version that waits for its restart and is not the one that the device should run; 0 = none."""
    return 0 if state.waiting == version else state.waiting


def is_way_back(state: SystemState, version: int, denied: Collection[int]) -> bool:
    """Return whether a device goes to a version by restarting into its other slot.

    Only a denied version is left so: the root side then puts it on the bad list for good.
    """
    return version == state.previous and state.version in denied


def reason_not_to_run(state: SystemState, version: int, denied: Collection[int]) -> str:
    """Return why this device must not go from the running version to another one; "" = it may, or there is no other.

    Args:
        version: that the device should run; 0 = none.
    """
    if version in (0, state.version) or is_way_back(state, version, denied):
        return ""
    if version in state.bad:
        return f"system {version} failed on this device ({state.bad[version]}): publish a higher version"
    if version < state.version:
        return f"system {version} is older than {state.version}, which runs: publish a higher version"
    if state.bad and version < max(state.bad):
        return f"system {version} is lower than {max(state.bad)}, which failed on this device: publish a higher version"
    return ""


def reason_not_to_fit(state: SystemState, document: SystemDocument) -> str:
    """Return why a genuine system is not for this device; "" = it is."""
    for what, found, expected in (
        ("the product", document.product, state.product),
        ("the profile", document.profile, state.profile),
        ("the processor", document.arch, state.arch),
    ):
        if found != expected:
            return f"{document.title} is for {what} {found}, and this device has {expected}"
    if document.needs_version > state.version:
        return (
            f"{document.title} needs version {document.needs_version} to install it, and {state.version} runs: "
            f"roll {document.needs_version} out first"
        )
    if document.state_schema < state.state_schema:
        return (
            f"{document.title} reads data of the form {document.state_schema}, and the data partition has "
            f"{state.state_schema}: publish a newer system"
        )
    return ""
