"""A registry over a directory of models, with a loader that only remembers."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Coroutine, Hashable
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import Any, cast

from google.protobuf import json_format, text_format

from edge_serve.config.model import model_config_pb2 as pb
from edge_serve.errors import EdgeServeError, Internal, InvalidArgument
from edge_serve.messages.infer import InferRequest
from edge_serve.messages.metadata import IndexEntry
from edge_serve.messages.statistics import ModelStatistics
from edge_serve.models.control.registry import Registry
from edge_serve.models.ensemble.flight import Lookup
from edge_serve.models.load.engines import EngineBuilds
from edge_serve.models.load.load_plan import LoadPlan
from edge_serve.models.load.loading import Loader
from edge_serve.models.load.memory import Way
from edge_serve.models.repository.override import Override
from edge_serve.models.repository.repository import FoundModel, Repository, fingerprint, versions
from edge_serve.models.run.runner import OnResponse, Runner, Ticket
from edge_serve.models.versions.lineage import Lineage
from edge_serve.workers.front.workers import Workers


class Idle(Runner):
    """A runner that is busy until told otherwise."""

    def __init__(self, busy: bool) -> None:
        self.busy = busy
        self.on_idle: Callable[[], None] | None = None

    def submit(self, request: InferRequest, rows: int, shape_key: Hashable, on_response: OnResponse) -> Ticket:
        raise NotImplementedError

    def stop(self, on_idle: Callable[[], None], *, sequences: bool = False) -> None:
        if self.busy:
            self.on_idle = on_idle
        else:
            on_idle()

    def answer(self) -> None:
        """Answer the last request."""
        self.busy = False
        if self.on_idle is not None:
            self.on_idle()

    def in_flight(self) -> int:
        return int(self.busy)

    def oldest_batch_seconds(self) -> float | None:
        return 12.0 if self.busy else None


class FakeServed:
    """The part of a Served that the registry uses."""

    def __init__(self, name: str, version: int, busy: bool, config: pb.ModelConfig, directory: Path) -> None:
        self.name = self.identity = name
        self.config = config
        self.directory = directory
        self.kept = None
        self.version = str(version)
        self.healthy = True
        self.swapping = self.has_stand_in = False
        self.references = 0
        self.load_seconds = 0.0
        self.arena = self.opened = None
        self.closed = False
        self.runner = Idle(busy)
        self.statistics = ModelStatistics()
        self.lineage = Lineage()

    def continue_counters(self, before: FakeServed) -> None:
        self.lineage = before.lineage
        self.lineage.add(before.statistics)

    def stand_in(self, runner: Runner) -> FakeServed:
        other = FakeServed(self.name, int(self.version), False, self.config, self.directory)
        other.runner, other.swapping = cast(Idle, runner), True
        return other

    async def wait_released(self) -> None:
        """Nothing of it is under way elsewhere."""


class FakeLoader:
    """Opens whatever it is asked for, but for what `broken` names."""

    def __init__(self) -> None:
        self.builds = EngineBuilds(dict, Workers().interpreter_for)
        self.broken: dict[tuple[str, int], EdgeServeError] = {}
        self.opened: list[FakeServed] = []
        self.busy = False
        self.gate: asyncio.Event | None = None
        #: model -> what its `open` waits for
        self.waits: dict[str, Callable[[], Coroutine[Any, Any, Any]]] = {}
        #: `plan` waits for it
        self.readable = threading.Event()
        self.readable.set()
        self.tries = 0
        self.broken_times: float = math.inf

    def plan(self, found: FoundModel, override: Override | None) -> LoadPlan:
        self.readable.wait(10)
        if not (found.directory / "ok").exists():
            raise InvalidArgument("unreadable configuration")
        numbers = versions(found.directory)
        text = found.directory / "config.pbtxt"
        config = text_format.Parse(text.read_text() if text.exists() else "", pb.ModelConfig())
        if override is not None:
            json_format.Parse(override.config or "{}", config)
        return LoadPlan(found.name, found.directory, config, numbers, fingerprint(found.directory), override)

    def joins(self, plan: LoadPlan, *, own_worker: bool) -> bool:
        return False

    def admit_to_gpus(
        self, plan: LoadPlan, files: int, *, joins: bool, replaces: bool, awaited: asyncio.Event
    ) -> AbstractAsyncContextManager[Way]:
        return nullcontext(Way.BESIDE)

    async def open(self, plan: LoadPlan, version: int, *, own_worker: bool) -> FakeServed:
        if self.gate is not None:
            await self.gate.wait()
        if plan.name in self.waits:
            await self.waits[plan.name]()
        self.tries += 1
        if (plan.name, version) in self.broken and self.tries <= self.broken_times:
            raise self.broken[plan.name, version]
        served = FakeServed(plan.name, version, self.busy, plan.config, plan.directory)
        self.opened.append(served)
        return served

    async def open_ensemble(self, plan: LoadPlan, version: int, lookup: Lookup) -> FakeServed:
        return await self.open(plan, version, own_worker=False)

    async def close(self, served: FakeServed) -> None:
        served.closed = True


_VECTOR = "data_type: TYPE_FP32 dims: 1"


def _step(member: str, source: str, target: str) -> str:
    maps = f'input_map {{ key: "X" value: "{source}" }} output_map {{ key: "Y" value: "{target}" }}'
    return f'step {{ model_name: "{member}" model_version: -1 {maps} }}'


class House:
    """A registry over a directory of models."""

    def __init__(self, root: Path, **options: Any) -> None:
        self.root = root
        self.loader = FakeLoader()
        self.repository = Repository([root])
        self.registry = Registry(self.repository, cast(Loader, self.loader), **options)

    def put(self, name: str, *numbers: int, readable: bool = True) -> None:
        for number in numbers:
            (self.root / name / str(number)).mkdir(parents=True, exist_ok=True)
        (self.root / name).mkdir(exist_ok=True)
        if readable:
            (self.root / name / "ok").touch()

    def put_member(self, name: str, output: str = "Y") -> None:
        """Add a model that can be a member of an ensemble."""
        self.put(name, 1)
        text = f'input {{ name: "X" {_VECTOR} }} output {{ name: "{output}" {_VECTOR} }}'
        (self.root / name / "config.pbtxt").write_text(f'name: "{name}" {text}')

    def put_ensemble(self, name: str, *members: str) -> None:
        """Add an ensemble of models in a row, each of which has the input X and the output Y."""
        self.put_member(name)
        ends = ["X", *(f"t{i}" for i in range(1, len(members))), "Y"]
        with (self.root / name / "config.pbtxt").open("a") as config:
            steps = "\n".join(map(_step, members, ends, ends[1:]))
            config.write(f'platform: "ensemble" ensemble_scheduling {{\n{steps}\n}}')

    async def replace(self, name: str, *versions: int) -> None:
        """Change the files of versions that serve, and load the model after those are unloaded. The load fails."""
        for version in versions:
            (self.root / name / str(version) / "weights").write_bytes(b"bad")
            self.loader.broken[name, version] = Internal("bad weights")
        assert "bad weights" in "".join(await self.registry.load_all([name], unload_first=True))

    def index(self) -> list[tuple[str, str, str, str]]:
        return [(e.name, e.version, e.state, e.reason) for e in self.entries()]

    def entries(self) -> list[IndexEntry]:
        return list(self.registry.index(ready_only=False, found=self.repository.scan()))

    def plans(self) -> dict[str, LoadPlan | None]:
        return {name: record.plan for name, record in self.registry._models.items()}

    def serving(self, name: str) -> FakeServed:
        return cast(FakeServed, self.registry.lookup(name, ""))


Scenario = Callable[[House], Coroutine[Any, Any, None]]


def play(root: Path, scenario: Scenario, **options: Any) -> None:
    async def run() -> None:
        await asyncio.wait_for(scenario(House(root, **options)), 10)

    asyncio.run(run())


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)
