"""Translates errors of tuf and of the system into errors of edge-ota, around every call of tuf."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from tuf.api import exceptions

from ota import files
from ota.errors import Expired, FetchError, OtaError, RolledBack, Untrusted
from ota.trust.roots import format_time

_AGAIN = "use another mirror, or publish again"


@contextlib.contextmanager
def translate_errors(now: float) -> Iterator[None]:
    """Translate every error of tuf and of the system into one of edge-ota.

    Args:
        now: the time that expiry is judged by, for the message.
    """
    try:
        yield
    except OtaError:
        raise
    except exceptions.ExpiredMetadataError as error:
        clock = f"this device's clock says {format_time(now)}"
        raise Expired(f"{error} ({clock}): sign the metadata again, or correct the clock; models go on") from error
    except exceptions.BadVersionNumberError as error:
        if _goes_back(str(error)):
            raise RolledBack(f"the repository serves an old state: {error}; {_AGAIN}") from error
        raise Untrusted(f"the metadata does not fit together: {error}; {_AGAIN}") from error
    except exceptions.DownloadError as error:
        raise FetchError(f"cannot fetch the metadata: {error}; the next run tries again") from error
    except exceptions.LengthOrHashMismatchError as error:
        raise Untrusted(f"a file is not the one that was signed: {error}; {_AGAIN}") from error
    except OSError as error:
        # tuf renames temporary files: the second name is the one that an operator knows
        named = OSError(error.errno, error.strerror, error.filename2 or error.filename)
        raise files.to_store_error(named, Path("metadata")) from error
    except exceptions.RepositoryError as error:
        raise Untrusted(f"the metadata is not trusted: {error}; {_AGAIN}") from error
    except Exception as error:
        raise Untrusted(f"the metadata cannot be read: {type(error).__name__}: {error}; {_AGAIN}") from error


def _goes_back(text: str) -> bool:
    """Return whether a version is lower than before, rather than only different from the announced one.

    The library has one class for both; tests/ota/trust notices when its words change.
    """
    return "must be >=" in text or ".json version " in text
