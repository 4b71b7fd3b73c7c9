"""Looks whether the clock was ever set.

Where a machine has no battery, systemd starts the clock at the date of the system's build (/usr/lib/clock-epoch), or
where the last answer of a time server left it. So a clock that began at the date of the build or before was never set.
"""

from __future__ import annotations

import time
from pathlib import Path

from image.device import report

#: systemd-timesyncd makes this file when a time server has answered
SYNCHRONIZED = "run/systemd/timesync/synchronized"
#: all files of the image have the date of the build
BUILT = "usr/lib/os-release"


def look(now: float, uptime: float, root: Path = Path("/"), run: Path = report.RUN) -> None:
    """Report or clear the fault of a clock.

    Args:
        now: seconds since 1970. uptime: seconds since the start.
    """
    try:
        built = (root / BUILT).stat().st_mtime
    except OSError:
        return
    if now - uptime > built or (root / SYNCHRONIZED).exists():
        report.clear("clock", run=run)
        return
    report.report(
        "clock",
        f"The clock was never set: it shows {_date(now)}, and this system was built on {_date(built)}.",
        "Connect the network, or name a time server in edge-serve.toml (network.ntp). Until then, expired certificates"
        " and updates are noticed late, new certificates count as not yet valid, and the log has wrong times.",
        run=run,
    )


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(seconds))
