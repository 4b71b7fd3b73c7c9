"""edge-serve: Triton Inference Server's job on a device you can flash.

Read downwards by layer (docs/rooms.md): `errors clock tensors messages` are the words, `config protocol metrics`
read and write them, `scheduling` decides, `backends` compute inside `workers`, `models` live, `service` means every
operation once, `transport` speaks it, `server` and `cli` put it together; `in_process` is `from edge_serve import
Server`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edge_serve.in_process import AsyncSession, Server, Session

__all__ = ["AsyncSession", "Server", "Session", "__version__"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """The in-process server, imported when it is asked for: workers import this package too, and must start quickly."""
    if name in ("AsyncSession", "Server", "Session"):
        from edge_serve import in_process

        return getattr(in_process, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
