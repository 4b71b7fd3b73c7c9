"""The place of `/var` in this boot, as the initrd wrote it: on the data partition, or in memory.

`initrd/edge-state` alone knows it. A file that is missing on the partition says nothing: it may have been erased by a
factory reset, or be too long to be read.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from image.device import files

_MOST_BYTES = 4096


class DataPlace(NamedTuple):
    """The place of `/var`.

    Attributes:
        lasting: whether files survive a restart.
        reason: the code of the fault because of which they do not; "" = they do.
    """

    lasting: bool
    reason: str


def read_place(run: Path) -> DataPlace | None:
    """Return the place of `/var`; None if no initrd of this image wrote it.

    Args:
        run: /run/edge-device.
    """
    try:
        found = json.loads(files.read_if_there(run / "data.json", _MOST_BYTES) or b"")
        return DataPlace(found["lasting"] is True, str(found["reason"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
