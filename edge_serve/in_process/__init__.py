"""The server inside a Python program: `from edge_serve import Server` (docs/in_process.md is the user's page).

    server     Server: settings, to be started with `with` or `async with`
    session    AsyncSession: the running server, on the event loop that started it
    blocking   Session: the same for programs without an event loop, which get one in a thread
    responses  queue of the responses of one stream
    arrays     converts NumPy arrays to tensors and back

It corresponds to Triton's in-process API: the server of `edge_serve.server` with its doors closed, and with models
in worker processes. Layer 7; only programs import it. Start reading in `session`.
"""

from __future__ import annotations

from edge_serve.in_process.blocking import Session
from edge_serve.in_process.server import Server
from edge_serve.in_process.session import AsyncSession, Options

__all__ = ["AsyncSession", "Options", "Server", "Session"]
