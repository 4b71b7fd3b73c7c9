"""The worker's side: `python -m edge_serve.workers.child.main CONTROL_FD PIPE_FD HEARTBEAT_SECONDS BACKEND`.

BACKEND is one to import before a model is asked for, or "". The control thread reads control frames and never
computes. Loading and closing run in the main thread for models that have a process of their own (users' code expects
it, and its first instance runs there too), else in a thread each. Another thread sends heartbeats, so a silent worker
is one whose interpreter is stuck. The process ends when the control channel does, or at once when the front end dies
(`lifetime_guard`). Standard library and NumPy only: start-up is part of every load.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import queue
import socket
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from edge_serve.backends import host, loader
from edge_serve.backends.base import ArenaMemory, Backend, BackendInstance, DeviceLost, InstanceSpec, ModelSpec
from edge_serve.backends.packs import Pack
from edge_serve.errors import EdgeServeError, Internal, NotFound, Unavailable
from edge_serve.records import slotted
from edge_serve.workers.child.calling import CallerArena
from edge_serve.workers.child.forks import Forks
from edge_serve.workers.child.instance import Instance, exit_worker
from edge_serve.workers.child.memory.arena_imports import ArenaImports
from edge_serve.workers.child.memory.input_arena import InputArena
from edge_serve.workers.child.mismatch import Mismatches
from edge_serve.workers.child.own_threads import OwnThread
from edge_serve.workers.child.pipelined import kind_of
from edge_serve.workers.child.process import Control, ForwardingHandler, beat, prepare_process
from edge_serve.workers.child.remote import Remote
from edge_serve.workers.child.states import with_states
from edge_serve.workers.wire.frames import CANCELLATION, SLOT, Frame, FrameKind, failed_frame, frame, json_frame
from edge_serve.workers.wire.layout import TensorLayout
from edge_serve.workers.wire.place import calls_of, own_place

#: questions about one model's health that are remembered; the front end does not wait for older ones any more
_MOST_WAITING = 64
#: how long a job may go on after the front end has hung up
_LAST_JOB_SECONDS = 0.2
_THREADS = " (raise the limit of memory or threads: ulimit -v, TasksMax= or MemoryMax= of the service)"


@slotted
class LoadedModel:
    """A model version in this process."""

    backend: Backend
    instances: list[Instance]
    #: by channel; one that runs in the main thread has none
    threads: dict[int, threading.Thread]
    in_main: bool
    #: acquired to close instances, one at a time, of all that share the backend
    closing: threading.Lock

    def of(self, channel: int | None) -> list[Instance]:
        """Return the instance of a channel; all instances if that is None."""
        return [instance for instance in self.instances if channel in (None, instance.number)]


class Main:
    """The models that this process has loaded, and the handlers of control frames."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._jobs: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._loaded: dict[int, LoadedModel] = {}
        self._instances: dict[int, Instance] = {}
        #: by the directories of the versions: with --model-namespacing, models may have equal names
        self._described: dict[Path, Backend] = {}
        self._busy: set[object] = set()
        #: set when a model begins to be described or opened, for the heartbeat thread
        self.begun = threading.Event()
        self._imports = ArenaImports()
        self._forked = False
        #: threads in which models are described or opened now
        self._loading: list[int] = []
        #: model -> questions that the answer of its `is_ready` is for
        self._health: dict[int, deque[int]] = {}
        self._health_lock = threading.Lock()
        self.remote = Remote(control.send)
        self._acts: dict[int, Callable[[Frame], None]] = {
            FrameKind.DESCRIBE: self._on_describe,
            FrameKind.DISCARD: self._on_discard,
            FrameKind.OPEN: self._on_open,
            FrameKind.CLOSE: self._on_close,
            FrameKind.HEALTH: self._on_health,
            FrameKind.CANCEL: self._on_cancellation,
            FrameKind.PAUSE: self._on_cancellation,
            FrameKind.RESUME: self._on_cancellation,
            FrameKind.OUTPUT_SLOT: self._on_slot,
            FrameKind.ARENA: self._on_arena,
            FrameKind.ARENA_GONE: lambda received: self._imports.remove(received.id),
            FrameKind.REGION: self._on_region,
            FrameKind.CUDA_REGION: lambda received: self._imports.add_cuda_region(received.id, received.json()),
            FrameKind.CALL_RESULT: self.remote.on_result,
            FrameKind.INFER_RESPONSE: self.remote.calling.on_response,
            FrameKind.FAILED: self.remote.on_result,
        }

    def run(self) -> None:
        """Do the main thread's jobs until the front end hangs up."""
        OwnThread(self._listen, "control").start()
        while (job := self._jobs.get()) is not None:
            job()

    def import_ahead(self, backend: str) -> None:
        """Import a backend in the main thread, while there is no model to load yet."""
        self._jobs.put(partial(loader.import_ahead, backend))

    def cut_off(self) -> None:
        """Disconnect a child that a model forked. It must not answer for this process, and exits when it returns from
        the model's code."""
        self._forked = True
        self.remote.cut_off()
        self._control.disconnect()
        for instance in self._instances.values():
            instance.disconnect()

    def _exit_if_forked(self) -> None:
        if self._forked:
            os._exit(0)

    def _listen(self) -> None:
        try:
            while (frames := self._control.receive()) is not None:
                for received in frames:
                    self._act(received)
        except OSError:
            pass
        end = time.monotonic() + _LAST_JOB_SECONDS
        while self._busy and not self._loaded and time.monotonic() < end:  # it has answered, and is about to return
            time.sleep(0.005)
        if self._loaded or self._busy:  # the front end died or cancelled the load: no process waits for a finalize
            os._exit(1)
        self._jobs.put(None)

    def _act(self, received: Frame) -> None:
        act = self._acts.get(received.kind)
        if act is None:
            return
        try:
            act(received)
        except BaseException:  # no thread or descriptor is left, say: a process that does not listen must not live on
            traceback.print_exc(file=sys.stderr)
            os._exit(1)

    def _descriptors(self, count: int) -> list[int]:
        """Take the descriptors that came with a frame.

        Raises:
            RuntimeError: the kernel has left some out, because this process has none free.
        """
        found, self._control.descriptors = self._control.descriptors[:count], self._control.descriptors[count:]
        if len(found) < count:
            raise RuntimeError("a descriptor from the server did not arrive: this process has too many files open")
        return found

    def _start(self, question: int, in_main: bool, job: Callable[[], object]) -> bool:
        """Run a job in the main thread, or in one of its own. Return False when it was answered that there is none."""

        def run() -> None:
            try:
                job()
            finally:
                self._busy.discard(run)
                self._exit_if_forked()

        self._busy.add(run)
        if in_main:
            self._jobs.put(run)
        else:
            try:
                threading.Thread(target=run, name="loading", daemon=True).start()
            except RuntimeError as error:  # requests that run already continue
                self._busy.discard(run)
                self._control.send(
                    failed_frame(question, Unavailable(f"its process cannot start a thread: {error}{_THREADS}"))
                )
                return False
        return True

    def _answer(self, question: int, make: Callable[[], bytes]) -> bool:
        """Send what `make` returns, or FAILED with why it could not."""
        try:
            answer = make()
        except EdgeServeError as error:
            self._control.send(failed_frame(question, error))
            if isinstance(error, DeviceLost) or getattr(error, "sticky", False):  # so does each later load here
                exit_worker(error.message)
            return False
        except BaseException as fault:  # users' code: sys.exit too must not end the process without a word
            logging.getLogger(__name__).exception("a model failed to load or close")
            self._control.send(failed_frame(question, Internal(f"{type(fault).__name__}: {fault}")))
            return False
        self._control.send(answer)
        return True

    def _answer_load(self, question: int, make: Callable[[], bytes]) -> bool:
        """Answer as `_answer` does, while a model loads in this thread."""
        thread = threading.get_ident()
        self._loading.append(thread)
        self.begun.set()
        try:
            return self._answer(question, make)
        finally:
            self._loading.remove(thread)

    def is_loading(self) -> bool:
        """Return whether a model is described or opened now."""
        return bool(self._loading)

    def place_of_load(self) -> str:
        """Return where in its own code the model is that began to load last; "" = none is, or none is in code of its
        own. An earlier load may hang (`front.worker`)."""
        if not self._loading:
            return ""
        frames = sys._current_frames()
        try:
            places = (own_place(calls_of(frames.get(thread))) for thread in reversed(self._loading.copy()))
            return next(filter(None, places), "")
        finally:
            frames.clear()  # the frame of this call is among them: the cycle would keep what the loads had open

    # ---- questions ------------------------------------------------------------------------------------------------

    def _on_describe(self, received: Frame) -> None:
        value = received.json()
        self._start(received.id, value["in_main"], lambda: self._describe(received.id, value))

    def _describe(self, question: int, value: dict[str, Any]) -> bool:
        spec = _spec(value["spec"])

        def describe() -> bytes:
            backend = loader.load(value["backend"], spec)
            with contextlib.ExitStack() as undo:
                undo.callback(_close_unopened, backend)
                completed = backend.complete_config(spec)
                undo.pop_all()
            self._described[spec.version_directory] = backend
            return json_frame(FrameKind.DESCRIBED, question, {"config": completed})

        return self._answer_load(question, describe)

    def _on_discard(self, received: Frame) -> None:
        backend = self._described.pop(Path(received.json()["version_directory"]), None)
        if backend is not None:
            self._start(received.id, False, backend.close)

    def _on_open(self, received: Frame) -> None:
        value = received.json()
        descriptors = self._descriptors(1 + len(value["instances"]))
        if not self._start(received.id, value["in_main"], lambda: self._open(received.id, value, descriptors)):
            for fd in descriptors:
                os.close(fd)

    def _open(self, question: int, value: dict[str, Any], descriptors: list[int]) -> None:
        sockets = [socket.socket(fileno=fd) for fd in descriptors[1:]]

        def load() -> bytes:
            try:
                answer = self._load(value, sockets, descriptors[0])
            finally:
                os.close(descriptors[0])
            return json_frame(FrameKind.OPENED, question, answer)

        if not self._answer_load(question, load):
            for sock in sockets:
                sock.close()
            return
        if value["in_main"]:  # else a CLOSE that followed the answer may have removed the model by now
            self._loaded[value["model"]].instances[0].run()

    def _load(self, value: dict[str, Any], sockets: list[socket.socket], arena_fd: int) -> dict[str, Any]:
        """Open instances, and start their threads. Return the content of the answer."""
        spec, arena = _spec(value["spec"]), _map(arena_fd)
        spec.arena = ArenaMemory(arena, partial(self.remote.pin, value["model"]))
        specs = [InstanceSpec(one["name"], one["kind"], one["device_id"]) for one in value["instances"]]
        beside = self._loaded.get(value["beside"])
        described = self._described.pop(spec.version_directory, None) if beside is None else beside.backend
        backend = described or loader.load(value["backend"], spec)
        with contextlib.ExitStack() as undo:
            if beside is None:
                undo.callback(_close_unopened, backend)
            opened = backend.open(spec, specs)
            for one in opened:
                undo.callback(_close_unopened, one)
            executors = with_states(opened, spec)
            undo.pop_all()
        self._exit_if_forked()  # in the model's code; the channels are not known to `cut_off` yet
        layout = TensorLayout(spec.config, sorts_inputs=not spec.is_python)
        layout.writes = any(getattr(one, "writes_inputs", False) for one in opened)
        layout.counts_rows = spec.is_python and layout.batches
        layout.on_device = any(getattr(executor, "takes_device_memory", False) for executor in executors)
        mismatches = Mismatches(spec, partial(self.remote.warn_once, value["model"]))
        instances = [
            kind_of(executor, layout)(
                one["name"],
                one["channel"],
                sock,
                layout,
                arena,
                executor,
                self._imports,
                mismatches,
                _inputs(layout, arena, arena_fd if spec.is_python else -1),
            )
            for one, sock, executor in zip(value["instances"], sockets, executors, strict=True)
        ]
        in_main = value["in_main"]
        threads = {
            instance.number: threading.Thread(target=instance.run, name=instance.name, daemon=True)
            for instance in instances[1 if in_main else 0 :]
        }
        closing = threading.Lock() if beside is None else beside.closing
        self._loaded[value["model"]] = LoadedModel(backend, instances, threads, in_main, closing)
        self._instances.update((instance.number, instance) for instance in instances)
        if in_main:
            self.remote.calling.home = CallerArena(value["model"], arena, instances[0].inputs)
        for thread in threads.values():  # before the answer: CLOSE may follow at once, and joins them
            thread.start()
        return {"seats": [instance.seats for instance in instances], "writes": layout.writes}

    def _on_close(self, received: Frame) -> None:
        asked = received.json()
        number, channel = asked["model"], asked.get("channel")
        loaded = self._loaded.get(number)
        if loaded is None:
            self._control.send(failed_frame(received.id, NotFound(f"model {number} is not open")))
        else:
            for instance in loaded.of(channel):  # one that waits for a client would not come to its end
                instance.wake_senders()
            self._start(received.id, loaded.in_main, lambda: self._close(received.id, number, loaded, channel))

    def _close(self, question: int, number: int, loaded: LoadedModel, channel: int | None) -> bool:
        def close() -> bytes:
            going = loaded.of(channel)
            for instance in going:  # they end because the front end has closed their channels
                if (thread := loaded.threads.pop(instance.number, None)) is not None:
                    thread.join()
            try:
                for instance in going:
                    instance.backend.close()
                if going and len(going) == len(loaded.instances) and not self._shares(number):
                    loaded.backend.close()
            finally:
                loaded.instances = [instance for instance in loaded.instances if instance not in going]
                if not loaded.instances:
                    self._loaded.pop(number, None)
                for instance in going:
                    del self._instances[instance.number]
            return json_frame(FrameKind.CLOSED, question, {})

        with loaded.closing:
            return self._answer(question, close)

    def _shares(self, number: int) -> bool:
        """Return whether other instances of a model, opened later or earlier, use its backend."""
        backend = self._loaded[number].backend
        return any(other.backend is backend for key, other in self._loaded.copy().items() if key != number)

    def _on_health(self, received: Frame) -> None:
        """Ask the model in a thread. Questions that come meanwhile get the same answer, so that a model whose
        `is_ready` hangs has one thread that hangs, and not one for each question."""
        number = received.json()["model"]
        with self._health_lock:
            waiting = self._health.get(number)
            if waiting is not None:
                waiting.append(received.id)
                return
            self._health[number] = deque([received.id], _MOST_WAITING)
        if not self._start(received.id, False, lambda: self._ask_health(number)):
            with self._health_lock:
                del self._health[number]

    def _ask_health(self, number: int) -> None:
        loaded = self._loaded.get(number)
        try:
            ready = loaded is not None and all(instance.backend.is_ready() for instance in loaded.instances)
        except BaseException:  # users' code: sys.exit too
            logging.getLogger(__name__).exception("is_ready failed")
            ready = False
        with self._health_lock:
            questions = self._health.pop(number)
        for question in questions:
            self._control.send(json_frame(FrameKind.HEALTH_REPLY, question, {"ready": ready}))

    # ---- about running batches ------------------------------------------------------------------------------------

    def _on_cancellation(self, received: Frame) -> None:
        """Handle a CANCEL, PAUSE, or RESUME frame."""
        number, index = CANCELLATION.unpack_from(received.payload)
        instance = self._instances.get(number)
        if instance is not None and received.kind == FrameKind.CANCEL:
            instance.cancel(received.id, index)
        elif instance is not None:
            instance.set_paused(received.id, index, received.kind == FrameKind.PAUSE)

    def _on_arena(self, received: Frame) -> None:
        self._imports.add(received.id, *self._descriptors(1))

    def _on_region(self, received: Frame) -> None:
        self._imports.add_region(received.id, received.json(), *self._descriptors(1))

    def _on_slot(self, received: Frame) -> None:
        number, token, offset, capacity = SLOT.unpack_from(received.payload)
        instance = self._instances.get(number)
        if instance is not None:
            instance.grant_slot(token, offset, capacity, received.payload[SLOT.size :].decode())


def _spec(value: dict[str, Any]) -> ModelSpec:
    directories = {key: Path(value[key]) for key in ("model_directory", "version_directory")}
    pack = Pack.from_json(value["pack"]) if value["pack"] is not None else None
    return ModelSpec(**{**value, **directories, "pack": pack})


def _close_unopened(made: Backend | BackendInstance) -> None:
    """Close what a load that fails has made. The process may live on, with other models."""
    try:
        made.close()
    except Exception:  # the load has an error of its own
        logging.getLogger(__name__).exception("a model that did not load failed to close")


def _map(fd: int) -> memoryview:
    return memoryview(mmap.mmap(fd, os.fstat(fd).st_size))


def _inputs(layout: TensorLayout, arena: memoryview, arena_fd: int) -> memoryview | InputArena:
    """Return the arena as the inputs of one instance see it. A decoupled model has them until its stream ends.

    Args:
        arena_fd: for users' code, which may keep them; -1 = the instance keeps none.
    """
    if arena_fd < 0 or layout.decoupled:
        return arena.toreadonly() if layout.reruns else arena
    view = _map(arena_fd)
    return InputArena(view.toreadonly() if layout.reruns else view, arena)


def main(arguments: list[str]) -> None:
    """Serve one front end, then return."""
    control = Control(socket.socket(fileno=int(arguments[0])))
    tied = prepare_process(int(arguments[1]))
    worker = Main(control)

    def in_child() -> None:
        worker.cut_off()
        tied.tie_child()

    Forks(in_child).watch()
    host.install(worker.remote)
    ForwardingHandler(worker.remote).install()
    heartbeats = partial(beat, control, float(arguments[2]), worker.place_of_load, worker.is_loading, worker.begun)
    OwnThread(heartbeats, "heartbeat").start()
    control.send(frame(FrameKind.HELLO))
    if arguments[3]:
        worker.import_ahead(arguments[3])
    worker.run()


if __name__ == "__main__":
    # As in Triton's stub: a model may call code that reads these names (unittest.main). `multiprocessing` would import
    # this file again in each process that it starts.
    given, sys.argv[:] = sys.argv[1:], [""]
    __spec__ = None  # type: ignore[assignment]  # as for a program that is no module
    del __file__
    main(given)
