"""The tree of errors. Each class has an exit status and a stable reason word for status, metrics, and reports."""

from __future__ import annotations

from typing import ClassVar


class OtaError(Exception):
    """Base class. The message says what happened, what was expected, and what to do.

    Attributes:
        reason: one word in snake_case; stable, because fleets count by it.
        exit_status: of `edge-ota` when this error ends a command.
        permanent: the same release fails again on this device, so that it is not tried again.
    """

    reason: ClassVar[str] = "failed"
    exit_status: ClassVar[int] = 1
    permanent: ClassVar[bool] = False

    def __init__(self, message: str) -> None:
        # messages quote text of servers, models, and units, and are printed to terminals and logs
        message = "".join(one if one.isprintable() or one == "\n" else "?" for one in message)
        super().__init__(message)
        self.message = message


class UsageError(OtaError):
    """The command line or a setting is wrong."""

    reason = "usage"
    exit_status = 2


class FetchError(OtaError):
    """A repository, a mirror, or a USB stick did not deliver. A later try may succeed."""

    reason = "fetch"
    exit_status = 3


class NotInRepository(FetchError):
    """The repository does not have a file. Not retried with the same metadata."""

    reason = "not_found"


class Postponed(OtaError):
    """Not a fault: a download waits for its hours, another link, or the next run."""

    reason = "postponed"
    exit_status = 0


class FailedHere(Postponed):
    """Each variant of a release that fits this device failed on it, and waits for an operator."""

    permanent = True


class Untrusted(OtaError):
    """Metadata or content differs from what the trusted keys signed."""

    reason = "untrusted"
    exit_status = 4


class WrongBytes(Untrusted):
    """Each mirror transferred other bytes than the signed ones. The next try transfers them again."""


class Expired(Untrusted):
    """Metadata has expired. Updates stop; models keep serving."""

    reason = "expired"


class RolledBack(Untrusted):
    """Metadata or a release is older than what this device has seen."""

    reason = "rolled_back"


class StoreError(OtaError):
    """The disk of the device could not be read or written."""

    reason = "disk"
    exit_status = 5


class NoSpace(StoreError):
    """The disk or the quota is full. Not retried until space is free."""

    reason = "no_space"


class Occupied(StoreError):
    """The model repository has a model of the release's name that edge-ota did not put there."""

    reason = "occupied"


class Unsuitable(OtaError):
    """This device cannot run a genuine release: no variant fits, or it needs a newer agent or server."""

    reason = "unsuitable"
    exit_status = 6
    permanent = True


class TrialFailed(OtaError):
    """The release failed its golden test, its budget, or its probation on this device."""

    reason = "trial"
    exit_status = 7
    permanent = True


class Withdrawn(OtaError):
    """An operator rolled the release back on this device."""

    reason = "operator"
    permanent = True


class ServerError(OtaError):
    """edge-serve cannot be reached, or did not do what it was asked."""

    reason = "server"
    exit_status = 8


class NotHeld(ServerError):
    """A trial or a build could not be held, for a reason of this device: no unit, a full disk, a wrong setting."""

    reason = "not_held"


class NoBuildUnit(NotHeld):
    """This device has no unit for builds: trying again does not help."""

    reason = "no_build_unit"


class AlreadyRunning(OtaError):
    """Another edge-ota works on the same state directory."""

    reason = "busy"
    exit_status = 9


class StepNotAllowed(OtaError):
    """The gate of a rollout does not allow the next step yet."""

    reason = "not_yet"
    exit_status = 10


class RolloutHalted(OtaError):
    """More devices failed than the limits allow. The rollout is paused, unless the message says why not yet."""

    reason = "halted"
    exit_status = 11
