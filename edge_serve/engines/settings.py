"""Settings of builds in `--backend-config=tensorrt`: where engines are cached, and how long a build may take.

Light to import: the first workers are started before the server has NumPy, and the cache is closed to them
(`first_workers`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from edge_serve.config.settings.server_values import BackendSetting
from edge_serve.errors import InvalidArgument
from edge_serve.records import frozen

#: settings of `--backend-config=tensorrt`
CACHE_SETTING, CACHE_SIZE_SETTING, LIMIT_SETTING = "engine-cache", "engine-cache-mb", "engine-build-secs"
#: seconds
_DEFAULT_LIMIT = 7200
#: MB
DEFAULT_CACHE_MB = 4096


@frozen
class CacheSettings:
    """Where engines are cached, and how much of them.

    Attributes:
        timing_cache: file of TensorRT's timing cache; "" = in the directory.
    """

    directory: Path
    most_mb: int = DEFAULT_CACHE_MB
    timing_cache: str = ""


def cache_settings(backend_config: Mapping[str, str], environ: Mapping[str, str]) -> CacheSettings:
    """Return the cache of a server.

    Args:
        environ: $CACHE_DIRECTORY counts, else $XDG_CACHE_HOME.

    Raises:
        InvalidArgument: a setting cannot be read.
    """
    size = _number(backend_config, CACHE_SIZE_SETTING, DEFAULT_CACHE_MB)
    given = backend_config.get(CACHE_SETTING, "")
    return CacheSettings(Path(given) if given else default_directory(environ), size)


def without_cache(settings: Sequence[BackendSetting]) -> tuple[BackendSetting, ...]:
    """Return a server's settings without those of its engine cache, for a command that another user may run.

    That user may lack the right to write the server's cache, or would leave files there that the server does not own.
    """
    return tuple(one for one in settings if one.key not in (CACHE_SETTING, CACHE_SIZE_SETTING))


def build_limit(backend_config: Mapping[str, str]) -> float:
    """Return the seconds that a build at load may take.

    Raises:
        InvalidArgument: the setting cannot be read.
    """
    return float(_number(backend_config, LIMIT_SETTING, _DEFAULT_LIMIT))


def default_directory(environ: Mapping[str, str]) -> Path:
    """Return the cache below $CACHE_DIRECTORY (systemd's CacheDirectory=), or in the user's cache."""
    if given := environ.get("CACHE_DIRECTORY", "").partition(":")[0]:
        return Path(given, "engines")
    return Path(environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "edge-serve", "engines")


def _number(backend_config: Mapping[str, str], key: str, default: int) -> int:
    text = backend_config.get(key, str(default))
    if not text.isascii() or not text.isdigit():
        raise InvalidArgument(f"--backend-config=tensorrt,{key} is '{text}', expected a number")
    return int(text)
