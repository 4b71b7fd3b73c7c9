"""Checks that need other programs, or time: certificates, OTA documents, settings of the server. Only for new files."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from image.device.provision.configuration import PAIRS, Configuration
from image.device.provision.mistakes import Mistake, quoted
from image.device.provision.read import Parsed

EDGE_SERVE = "/opt/edge-serve/bin/edge-serve"
EDGE_OTA = "/opt/edge-serve/bin/edge-ota"
#: under emulation the start of a program takes ten seconds
SECONDS = 60.0
#: key of a document -> option of edge-ota
_DOCUMENTS = {"ota.root": "--root", "ota.device": "--device-file"}
#: what the check of settings must not look at: systemd's sockets already listen on these ports
_DOORS = ("--allow-http=false", "--allow-grpc=false", "--allow-metrics=false")


class Ended(NamedTuple):
    """The end of a program: its status and what it printed."""

    status: int
    text: str


#: runs a command with an environment
Run = Callable[[Sequence[str], Mapping[str, str]], Ended]


def run(command: Sequence[str], environ: Mapping[str, str]) -> Ended:
    """Run a program with a time limit. A program that is missing or hangs ends with status 127 or 124."""
    import subprocess  # imports take long under emulation, and most starts check nothing

    try:
        done = subprocess.run(
            command, env={**os.environ, **environ}, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            errors="replace", timeout=SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Ended(124, f"{command[0]} did not end within {SECONDS:g} s")
    except OSError as error:
        return Ended(127, f"{command[0]}: {error.strerror}")
    return Ended(done.returncode, done.stdout + done.stderr)


def check_all(
    parsed: Parsed, configuration: Configuration, root_in_force: bytes | None, run: Run = run
) -> list[Mistake]:
    """Return the mistakes that only programs find.

    Args:
        root_in_force: the trusted root of the device; None = it has none.
    """
    import tempfile

    found: list[Mistake] = []
    with tempfile.TemporaryDirectory(prefix="edge-provision-") as name:
        scratch = Path(name)
        scratch.chmod(0o711)  # edge-ota reads its documents as a user of its own
        for key, data in configuration.files.items():
            mode = 0o644 if key in _DOCUMENTS else 0o600
            descriptor = os.open(scratch / key, os.O_WRONLY | os.O_CREAT, mode)
            with open(descriptor, "wb") as file:
                file.write(data)
        for cert, key in PAIRS:
            if cert in configuration.files and key in configuration.files:
                found += _certificate(parsed, scratch, cert, key)
        if "ota.ca" in configuration.files:
            found += _authority(parsed, scratch / "ota.ca")
        found += _root(parsed, configuration, root_in_force)
        found += _documents(parsed, configuration, scratch, run)
    return found + list(_settings(parsed, configuration, run))


def _at(parsed: Parsed, key: str, text: str) -> Mistake:
    return Mistake(parsed.line(*key.split(".")), f"{key}: {text}")


def _certificate(parsed: Parsed, scratch: Path, cert: str, key: str) -> Iterator[Mistake]:
    import ssl

    passphrase: list[bool] = []

    def ask() -> bytes:
        passphrase.append(True)
        return b""

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(scratch / cert, scratch / key, ask)
    except (ssl.SSLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or ""
        if passphrase:
            yield _at(parsed, key, "found a key with a passphrase, expected one without: openssl pkey -in KEY -out NEW")
        elif "MISMATCH" in reason:
            yield _at(parsed, key, f"the key does not fit the certificate in {cert}: give the key that it was made for")
        else:
            text = (
                f"expected a certificate and its key in PEM ({reason or 'not readable'}); openssl x509 -in FILE -text"
            )
            yield _at(parsed, cert, text)


def _authority(parsed: Parsed, path: Path) -> Iterator[Mistake]:
    import ssl

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except (ssl.SSLError, OSError, ValueError):
        yield _at(parsed, "ota.ca", "expected certificates in PEM; openssl x509 -in FILE -text shows one")


def _root(parsed: Parsed, configuration: Configuration, in_force: bytes | None) -> Iterator[Mistake]:
    new = configuration.files.get("ota.root")
    if new is None or in_force is None or configuration.replace_root or _signed(new) == _signed(in_force):
        return
    text = "the device trusts another root.json, and this one would let others update it"
    yield _at(
        parsed, "ota.root", f"{text}; if you mean it, add ota.replace_root = true, and remove that line afterwards"
    )


def _signed(root: bytes) -> object:
    """Return the signed part of a root.json, which other newlines do not change; all bytes if there is none."""
    try:
        return json.loads(root)["signed"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return root


def _documents(parsed: Parsed, configuration: Configuration, scratch: Path, run: Run) -> Iterator[Mistake]:
    command = [EDGE_OTA, "run-check-device"]
    for key, flag in _DOCUMENTS.items():
        command.append(f"{flag}={scratch / key if key in configuration.files else ''}")
    command.append(f"--device={configuration.name}")
    if not _DOCUMENTS.keys() & configuration.files.keys():
        return
    ended = run(command, {"EDGE_OTA_CONFIG": os.devnull})
    for line in ended.text.splitlines() if ended.status else ():
        kind, colon, reason = line.partition(": ")
        if colon and kind in ("root", "device"):
            yield _at(parsed, f"ota.{kind}", reason.replace(str(scratch / f"ota.{kind}"), "the file"))
    if ended.status not in (0, 1):
        yield _at(parsed, "ota", f"the check of the documents failed: {quoted(ended.text[-200:].strip())}; try again")


def _settings(parsed: Parsed, configuration: Configuration, run: Run) -> Iterator[Mistake]:
    if not configuration.settings:
        return
    import tempfile

    with tempfile.TemporaryDirectory(prefix="edge-provision-") as models:
        environ = {"EDGE_SERVE_MODEL_REPOSITORY": models, **configuration.settings}
        ended = run([EDGE_SERVE, "check-config", *_DOORS], environ)
    problems = [line.removeprefix("problem: ") for line in ended.text.splitlines() if line.startswith("problem: ")]
    for problem in problems:
        line = parsed.line("server", "settings", *_named(problem, configuration.settings))
        yield Mistake(line, f"server.settings: {problem}")
    if ended.status and not problems:
        text = f"'edge-serve check-config' failed: {quoted(ended.text[-200:].strip())}; try again"
        yield Mistake(parsed.line("server", "settings"), f"server.settings: {text}")


def _named(problem: str, names: Iterable[str]) -> list[str]:
    """Return the setting that a problem names first, as a variable or as a flag; [] = none."""
    found = []
    for name in names:
        flag = "--" + name.removeprefix("EDGE_SERVE_").lower().replace("_", "-")
        if (match := re.search(rf"({name}|{flag})(?![\w-])", problem)) is not None:
            found.append((match.start(), name))
    return [name for _, name in sorted(found)[:1]]
