"""Removes secrets from the boot partition after the data partition has them.

The secret's bytes are overwritten in place where the file lay. A flash drive may still have older copies of these
blocks, and FAT gives no guarantee: docs/image_settings.md says so.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from image.device import files
from image.device.provision.configuration import PAIRS, STORED, ClientToken, Configuration, is_inline, without_login
from image.device.provision.lines import KeyPath
from image.device.provision.mistakes import FILE, Mistake
from image.device.provision.read import Parsed
from image.device.provision.schema import KEYS, Kind

_PRIVATE_KEY = b"PRIVATE KEY-----"


def redacted(parsed: Parsed, configuration: Configuration) -> str:
    """Return the text with stored values in place of secrets. It describes the same configuration."""
    cuts = [*_tokens(parsed, configuration.tokens), *_inline(parsed), *_logins(parsed)]
    text = parsed.text
    for start, end, new in sorted(cuts, reverse=True):
        text = text[:start] + new + text[end:]
    return text


def _tokens(parsed: Parsed, tokens: Sequence[ClientToken]) -> Iterator[tuple[int, int, str]]:
    for i, token in enumerate(tokens):
        if (place := parsed.places.get(("server", "tokens", i, "token"))) is not None:
            yield place.key, place.end, f'hash = "sha256:{token.digest}"'


def _inline(parsed: Parsed) -> Iterator[tuple[int, int, str]]:
    for key in KEYS:
        if key.secret and key.kind is Kind.FILE and is_inline(_text(parsed, key.path) or ""):
            place = parsed.places[key.path]
            yield place.start, place.end, json.dumps(STORED)


def _logins(parsed: Parsed) -> Iterator[tuple[int, int, str]]:
    count = len(parsed.values.get("ota", {}).get("url", ()))
    paths: list[KeyPath] = [("network", "proxy"), *(("ota", "url", i) for i in range(count))]
    for path in paths:
        text = _text(parsed, path)
        if text is not None and without_login(text) != text:
            place = parsed.places[path]
            yield place.start, place.end, json.dumps(without_login(text))


def _text(parsed: Parsed, path: KeyPath) -> str | None:
    value: object = parsed.values
    for part in path:
        if isinstance(value, dict):
            value = value.get(str(part))
        elif isinstance(value, list) and isinstance(part, int):
            value = value[part]
    return value if isinstance(value, str) else None


def find_misplaced(parsed: Parsed, configuration: Configuration) -> Iterator[Mistake]:
    """Yield the files beside keys, such as certificates, that have a private key too: it would stay readable.

    The file that a certificate and its key share is removed with the key.
    """
    keys = dict(PAIRS)
    for key in KEYS:
        if key.secret or _PRIVATE_KEY not in configuration.files.get(key.name, b""):
            continue
        name, other = _text(parsed, key.path) or "", keys.get(key.name, "")
        if not other or is_inline(name) or name != _text(parsed, (*other.split("."),)):
            hint = f"; remove it, or name one file in both {key.name} and {other}" if other else "; remove it"
            yield Mistake(parsed.line(*key.path), f"{key.name}: found a private key, expected none here{hint}")


def remove(folder: Path, parsed: Parsed, text: str) -> list[str]:
    """Remove the secrets from a boot partition. Return the names of the files that were changed or removed.

    Args:
        text: the redacted text.

    Raises:
        OSError: the partition cannot be written.
    """
    changed = []
    if text != parsed.text:
        with open(folder / FILE, "r+b", buffering=0) as old:
            files.replace(folder / FILE, text.encode())
            _overwrite(old)
        changed.append(FILE)
    for key in KEYS:
        name = _text(parsed, key.path) if key.secret and key.kind is Kind.FILE else None
        if name and not is_inline(name) and name != STORED and (folder / name).is_file():
            with open(folder / name, "r+b", buffering=0) as old:
                files.remove(folder / name)
                _overwrite(old)
            changed.append(name)
    return changed


def _overwrite(file: BinaryIO) -> None:
    """Overwrite a file that has no name any more; its blocks are free when it is closed."""
    file.seek(0)
    file.write(bytes(os.fstat(file.fileno()).st_size))
    os.fsync(file.fileno())
