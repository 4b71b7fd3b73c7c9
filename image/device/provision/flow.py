"""The order of provisioning: read, check everything, store, apply, remove secrets.

A mistake anywhere leaves the configuration before in force. If that one is damaged or refused too, the files of the
last start stay as they are: without them the device would serve without tokens and TLS. If there may have been one
that is lost with the data partition, the server refuses all clients. Each step can be repeated, so a power cut between
any two of them changes nothing in the result of the next boot.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from image.device import files
from image.device.data.place import read_place
from image.device.provision import apply, programs, read, schema, store
from image.device.provision.configuration import Configuration, StoredSecrets
from image.device.provision.mistakes import FILE, Mistake, Refused
from image.device.provision.store import StoredConfiguration
from image.device.report import clear, report

#: mistakes that are reported one by one
MOST_SHOWN = 8
_KEY_TYPE = "ed25519"
_OTA_UNITS = ("edge-ota.timer", "edge-ota-trial.socket", "edge-ota-build.socket")
_CLOSED = "the server refuses all clients but those with a token that was made on the device"
_HELP = "correct edge-serve.toml on the boot partition, and restart the device (docs/image_settings.md)"
_RESTART = "restart the device; if this remains, journalctl -u edge-provision has the reason"


class Place(NamedTuple):
    """The directories and programs of a device; tests have others.

    Attributes:
        root: /. boot: the boot partition.
        mounted: whether the boot partition is mounted.
    """

    root: Path = Path("/")
    boot: Path = Path("/boot")
    zones: Path = Path("/usr/share/zoneinfo")
    mounted: Callable[[Path], bool] = os.path.ismount
    run: programs.Run = programs.run
    set_name: Callable[[str], None] = socket.sethostname

    @property
    def state(self) -> Path:
        """The directory of provisioning on the data partition."""
        return self.root / apply.STATE

    @property
    def reports(self) -> Path:
        """The directory of `image.device.report`."""
        return self.root / "run/edge-device"


class _Accepted(NamedTuple):
    """A configuration without mistakes. `text` has no secrets."""

    parsed: read.Parsed
    configuration: Configuration
    text: str


def provision(place: Place) -> list[Mistake]:
    """Bring the device into the state that the boot partition describes. Return the mistakes in it.

    Each fault is reported, and none ends the program: the device serves with the configuration before.
    """
    _restore(place)
    before = _load(place)
    if before is None and not _was_configured(place):
        _await_settings(place)
    mistakes: Sequence[Mistake] = ()
    accepted: _Accepted | None = None
    try:
        accepted = _read(place, before)
    except Refused as error:
        mistakes = error.mistakes
    except Exception as error:  # whatever a file makes this program do, the settings before apply
        mistakes = [_fault(error)]
    refused, stored = bool(mistakes), False
    configuration = _in_force(place, before, refused)
    if accepted is not None:
        configuration, stored = accepted.configuration, _store(place, accepted, before)
    elif not refused and not _was_configured(place):
        _note_never_configured(place)
    mistakes = mistakes or (configuration.lost if configuration else ())
    _report_mistakes(place, mistakes)
    _report_refusal(place, refused, closed=configuration is not None and configuration.closed)
    if configuration is not None:
        _apply(place, configuration)
    if accepted is not None:
        _remove_secrets(place, accepted, stored)
    return [*mistakes]


def _restore(place: Place) -> None:
    """Restore what a restart loses, from the last start, before anything else is read: that may fail or be killed."""
    try:
        name, zone = apply.restore(place.root)
        if name:
            place.set_name(name)
        _link_zone(place, zone if os.path.isfile(place.zones / zone) else "")
    except OSError as error:
        _report_unapplied(place, error)


def _await_settings(place: Place) -> None:
    """Report a first edge-serve.toml until it is applied: it may have tokens, and this program may be killed before.

    The server is closed before the boot partition is read, unless the device is known to have had no file. That one
    serves on, as after a mistake in its first file.
    """
    code, effect = "settings-not-applied", "the server serves all clients"
    if not store.is_never_configured(place.state):
        code, effect = "settings-closed", _CLOSED
        closed = apply.derive(Configuration(closed=True), "")
        try:
            apply.put([one for one in closed if one.path.startswith("etc/edge-serve/")], place.root)
        except OSError as error:
            _report_unapplied(place, error)
    if os.path.lexists(place.boot / FILE) or not place.mounted(place.boot):
        report(code, f"edge-serve.toml is not applied yet: {effect}", _RESTART, run=place.reports)


def _fault(error: Exception) -> Mistake:
    """Return an error of this program as a mistake of the file. Its own text may quote a secret, so it is left out."""
    import traceback  # imports take long under emulation

    _log(3, "".join(traceback.format_tb(error.__traceback__)))
    kind = (isinstance(error, OSError) and error.strerror) or type(error).__name__
    return Mistake(0, f"the settings could not be checked ({kind}); the journal has the place in the program")


def _load(place: Place) -> StoredConfiguration | None:
    """Return the stored configuration; None if there is none, or it cannot be read."""
    reason = "they are damaged"
    try:
        found = store.load(place.state)
    except Exception as error:
        found, reason = None, _fault(error).text
    if found is None and _was_configured(place):
        report("settings-stored", f"the stored settings cannot be read: {reason}", _HELP, run=place.reports)
    return found


def _was_configured(place: Place) -> bool:
    """Return whether the device ever had settings, also if they are damaged."""
    return os.path.lexists(place.state / "current") or (place.state / "config").exists()


def _read(place: Place, before: StoredConfiguration | None) -> _Accepted | None:
    """Read and check the boot partition; None = it has no file.

    Raises:
        Refused: there are mistakes.
    """
    if not place.mounted(place.boot):
        raise Refused([Mistake(0, "the boot partition is not mounted; check it on another computer")])
    data = read.read(place.boot)
    if data is None:
        return None
    from image.device.provision import secrets  # imports take long under emulation, and a new device has no file
    from image.device.provision.checks import check

    parsed = read.parse(data)
    schema.require_shape(parsed)
    configuration = check(parsed, place.boot, before.secrets if before else StoredSecrets(), place.zones)
    # not in `check`: settings that an earlier system accepted stay in force
    if misplaced := list(secrets.find_misplaced(parsed, configuration)):
        raise Refused(misplaced)
    text = secrets.redacted(parsed, configuration)
    if before is None or store.digest(store.content(text, configuration)) != before.digest:
        in_force = before.secrets.files.get("ota.root") if before else None
        if found := programs.check_all(parsed, configuration, in_force, place.run):
            raise Refused(found)
    return _Accepted(parsed, configuration, text)


def _in_force(place: Place, before: StoredConfiguration | None, refused: bool) -> Configuration | None:
    """Return the stored configuration: an empty one if none is stored, None if it cannot be used.

    Args:
        refused: whether the boot partition has settings that are not accepted, or cannot be read. They may have tokens,
            so an empty configuration is closed then, unless the device is known to have had none.
    """
    if before is None:
        closed = refused and not store.is_never_configured(place.state)
        return None if _was_configured(place) else Configuration(closed=closed)
    from image.device.provision.checks import check

    try:
        return check(before.parsed, place.state / "none", before.secrets, place.zones)
    except Exception as error:
        reason = error if isinstance(error, Refused) else _fault(error).text
        text = f"the stored settings are not valid for this system: {reason}"
        report("settings-stored", text, _HELP, run=place.reports)
        return None


def _store(place: Place, accepted: _Accepted, before: StoredConfiguration | None) -> bool:
    """Store the configuration. Return whether it survives a restart."""
    content = store.content(accepted.text, accepted.configuration)
    try:
        store.save(place.state, content)
    except OSError as error:
        text = f"the settings apply until the next restart only: they cannot be stored ({error.strerror})"
        report("settings-not-stored", text, "free space on the data partition, or repair it", run=place.reports)
        return False
    clear("settings-not-stored", run=place.reports)
    if before is None or store.digest(content) != before.digest:
        _log(6, f"the configuration {store.digest(content)} is in force")
    data = read_place(place.reports)
    return data is not None and data.lasting


def _note_never_configured(place: Place) -> None:
    try:
        store.note_never_configured(place.state)
    except OSError as error:
        _log(4, f"the next start cannot know that there was no edge-serve.toml: {error.strerror}")


def _report_mistakes(place: Place, mistakes: Sequence[Mistake]) -> None:
    for number in range(MOST_SHOWN + 2):
        clear(f"settings-{number}", run=place.reports)
    for number, mistake in enumerate(mistakes[:MOST_SHOWN], 1):
        report(f"settings-{number}", str(mistake), _HELP, run=place.reports)
    if len(mistakes) > MOST_SHOWN:
        text = f"{len(mistakes) - MOST_SHOWN} more mistakes in edge-serve.toml"
        report(f"settings-{MOST_SHOWN + 1}", text, "journalctl -u edge-provision", run=place.reports)
    for mistake in mistakes[MOST_SHOWN:]:
        _log(4, str(mistake))


def _report_refusal(place: Place, refused: bool, closed: bool) -> None:
    if closed:
        text = f"{_CLOSED}: edge-serve.toml cannot be used, and no settings before it are stored"
        report("settings-closed", text, _HELP, run=place.reports)
        return
    clear("settings-closed", run=place.reports)
    if refused:
        _log(4, "the settings of edge-serve.toml are not applied; those before stay in force")


def _apply(place: Place, configuration: Configuration) -> None:
    machine_id = (files.read_if_there(place.root / "etc/machine-id", 64) or b"").decode(errors="replace").strip()
    name = apply.name_of(configuration, machine_id)
    try:
        place.set_name(name)
        _link_zone(place, configuration.timezone)
        changed = apply.put(apply.derive(configuration, name), place.root)
        if configuration.ssh_keys:
            _make_host_key(place)
    except OSError as error:
        _report_unapplied(place, error)
        return
    clear("settings-not-applied", run=place.reports)
    for path in changed:
        _log(6, f"/{path} changed")
    if "ota.root" in configuration.files and any(one.startswith("etc/edge-ota/") for one in changed):
        place.run(["systemctl", "start", "--no-block", *_OTA_UNITS], {})


def _report_unapplied(place: Place, error: OSError) -> None:
    report("settings-not-applied", f"not all settings are applied: {error}", _HELP, run=place.reports)


def _link_zone(place: Place, zone: str) -> None:
    """Make the link that /etc/localtime of the image names. "" = UTC."""
    path = place.root / "run/edge-device/localtime"
    files.make_directory(path.parent)
    files.replace_link(path, str(place.zones / (zone or "Etc/UTC")))


def _make_host_key(place: Place) -> None:
    """Make the host key of SSH once.

    Raises:
        OSError: it cannot be made.
    """
    folder = place.state / "ssh"
    path, fresh = folder / f"ssh_host_{_KEY_TYPE}_key", folder / "fresh"
    if path.exists():
        return
    for one in (fresh, fresh.with_suffix(".pub")):
        files.remove(one)
    ended = place.run(["ssh-keygen", "-q", "-t", _KEY_TYPE, "-N", "", "-C", "", "-f", str(fresh)], {})
    if ended.status:
        raise OSError(f"ssh-keygen failed: {ended.text[-200:].strip()}")
    for one, target in ((fresh.with_suffix(".pub"), path.with_suffix(".pub")), (fresh, path)):
        data = one.read_bytes()
        files.replace(target, data, 0o600 if target == path else 0o644)
        files.remove(one)


def _remove_secrets(place: Place, accepted: _Accepted, stored: bool) -> None:
    code = "settings-secrets"
    if not stored:
        if accepted.text != accepted.parsed.text:
            _log(4, "secrets stay on the boot partition, because the data partition does not keep them")
        return
    from image.device.provision import secrets

    try:
        for name in secrets.remove(place.boot, accepted.parsed, accepted.text):
            _log(6, f"removed the secrets of {name} from the boot partition: the data partition has them")
    except OSError as error:
        text = f"secrets are still on the boot partition: it cannot be written ({error.strerror})"
        report(code, text, "remove them on another computer: keys, tokens, and passwords", run=place.reports)
    else:
        clear(code, run=place.reports)


def _log(priority: int, text: str) -> None:
    """Write a line to the journal (sd-daemon(3))."""
    print(f"<{priority}>{text}", flush=True)


def main() -> int:
    """Provision this device, for edge-provision.service. Mistakes do not fail the unit: the boot continues."""
    try:
        provision(Place())
    except Exception as error:
        report("settings-0", str(_fault(error)), "journalctl -u edge-provision")
    return 0
