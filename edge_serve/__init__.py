"""edge-serve: Triton Inference Server's job on a device you can flash.

The files and folders are in the order of their layers: imports point upwards in this list, between layers
(tests/test_layers.py, docs/rooms.md). `from edge_serve import Server` is in `in_process`. Start with `server`, or with
docs/tour.md, which follows a request.

    errors         the one error tree
    clock          the type of clocks
    records        data classes, compiled when they are used
    messages/      requests, responses, signatures, statistics: plain values
    aio/           general tools for asyncio
    files          reads the small files that an operator names
    tensors        the tensor type under the names that backends import
    devices/       the GPUs of the machine
    config/        config.pbtxt, and the settings of the server
    protocol/      codecs of HTTP and gRPC: bytes in, values out
    access/        roles, and what each may do
    observe/       metrics, traces, the status document, and the log
    scheduling/    policies that decide which requests run next
    backends/      the code that executes models, in workers
    golden/        golden tests of models
    workers/       the processes in which models run
    engines/       builds and caches TensorRT engines
    models/        finds, loads, runs, swaps, and unloads models
    service        each operation of the protocol once
    transport/     the doors: HTTP and gRPC
    systemd/       the protocols of systemd
    supervision/   watchdog, safe mode, self-inference
    door_settings  certificates, access, and limits of the doors
    doors          opens and drains the doors
    draining       reports unanswered requests while the server drains
    first_workers  starts the first workers before the server is imported
    server         makes the parts of the server, starts and stops them
    in_process/    the server inside a Python program
    testing        opens a Python model without a server
    commands/      the list of commands, and their options
    check/         the commands `check` and `check-config`
    init/          the command `init`
    convert/       the command `convert`
    pack/          the command `pack`
    doctor/        the command `doctor`
    cli            the program `edge-serve`
    __main__       `python -m edge_serve`
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
