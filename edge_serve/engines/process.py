"""Starts the process that builds an engine, reads its progress, and kills it when its caller is cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from edge_serve.backends.tensorrt.plan import Step
from edge_serve.engines.request import BuildProgress, BuiltEngine, EngineRequest
from edge_serve.errors import BY_TRITON_CODE, EdgeServeError, Internal
from edge_serve.messages.line import shortened
from edge_serve.records import slotted

log = logging.getLogger(__name__)

CHILD = "edge_serve.engines.child"
#: between two reports of a phase without a percentage, seconds
TICK = 1.0
#: last lines of its standard error that explain a crash
_LINES = 20
#: of a line of progress, and of the answer
_LINE_BYTES = 1 << 24

OnProgress = Callable[[BuildProgress], None]


@slotted
class _Answer:
    """The last report of the child process, and its result.

    Attributes:
        phase, percent: last reported.
    """

    phase: str = "starting"
    percent: int | None = None
    done: Mapping[str, Any] | None = None
    error: EdgeServeError | None = None


async def run_build(
    request: EngineRequest, command: Sequence[str], variables: Mapping[str, str], on_progress: OnProgress
) -> BuiltEngine:
    """Build an engine, or find it in the cache. A cancelled caller kills the build.

    Args:
        command: starts our Python; the name of a module follows.
        variables: its environment.

    Raises:
        EdgeServeError: there is no engine, with the reason and advice.
    """
    child = await _start(command, variables)
    try:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        lines: deque[str] = deque(maxlen=_LINES)
        listening = asyncio.create_task(_listen(child.stderr, lines))
        with contextlib.suppress(ConnectionError):  # it crashed: its status says so
            child.stdin.write(request.to_json())
            await child.stdin.drain()
        child.stdin.close()
        answer = await _read(child.stdout, on_progress)
        status = await child.wait()
        await listening
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    if answer.error is not None:
        raise answer.error
    if answer.done is None:
        raise _crash(status, answer.phase, lines)
    try:
        return BuiltEngine(**answer.done)
    except TypeError as error:
        raise _other_version(error) from error


async def _start(command: Sequence[str], variables: Mapping[str, str]) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    try:
        return await asyncio.create_subprocess_exec(
            *command, CHILD, str(os.getpid()), env=dict(variables), stdin=pipe, stdout=pipe, stderr=pipe,
            start_new_session=True, limit=_LINE_BYTES,
        )  # fmt: skip
    except OSError as error:
        raise Internal(f"{Step.BUILD.value}: '{command[0]}' cannot be started: {error.strerror}") from error


async def _read(stream: asyncio.StreamReader, on_progress: OnProgress) -> _Answer:
    started, answer = time.monotonic(), _Answer()
    reading = asyncio.ensure_future(stream.readline())
    try:
        while True:
            # before Python 3.12, `wait_for` loses a cancellation that comes together with a line
            await asyncio.wait({reading}, timeout=TICK)
            if reading.done():
                line = reading.result()
                if not line:
                    return answer
                _take(answer, json.loads(line))
                reading = asyncio.ensure_future(stream.readline())
            if answer.done is None and answer.error is None:
                on_progress(BuildProgress(answer.phase, answer.percent, time.monotonic() - started))
    finally:
        reading.cancel()


def _take(answer: _Answer, found: Mapping[str, Any]) -> None:
    if "done" in found:
        answer.done = found["done"]
    elif "error" in found:
        answer.error = BY_TRITON_CODE.get(found.get("code", 1), Internal)(found["error"])
    else:
        try:
            answer.phase, answer.percent = found["phase"], found["percent"]
        except KeyError as error:
            raise _other_version(error) from error


def _other_version(error: Exception) -> EdgeServeError:
    text = f"the process that built it gave an answer of another version ({error})"
    return Internal(f"{Step.BUILD.value}: {text}; restart the server: its files were replaced")


async def _listen(stream: asyncio.StreamReader, lines: deque[str]) -> None:
    with contextlib.suppress(ValueError):  # a line without an end
        while line := await stream.readline():
            text = shortened(line.decode(errors="replace"), 500)
            lines.append(text)
            log.info("engine build: %s", text)


def _crash(status: int, phase: str, lines: Sequence[str]) -> EdgeServeError:
    last = f"; its last line: {lines[-1]}" if lines else ""
    if status != -signal.SIGKILL:
        ending = f"crashed ({signal.Signals(-status).name})" if status < 0 else f"ended with status {status}"
        return Internal(
            f"{Step.BUILD.value}: the process that built it {ending} during: {phase}{last}; see: edge-serve doctor"
        )
    return Internal(
        f"{Step.BUILD.value}: the process that built it was killed (SIGKILL) during: {phase}; most often the machine's "
        "memory ran out: unload models or stop other programs during the build, or build with --optimization-level=1"
    )
