"""Load, reload, unload, lookup and index, with a loader that only remembers."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Hashable
from pathlib import Path
from typing import Any, cast

import pytest
from google.protobuf import text_format

from edge_serve.config.model import model_config_pb2 as pb
from edge_serve.errors import EdgeServeError, Internal, InvalidArgument, NotFound, Unavailable
from edge_serve.messages.infer import InferRequest
from edge_serve.messages.metadata import IndexEntry
from edge_serve.messages.statistics import ModelStatistics
from edge_serve.models.control.registry import Registry
from edge_serve.models.load.loading import Loader, LoadPlan
from edge_serve.models.repository.names import check_name, parse_version
from edge_serve.models.repository.override import Override
from edge_serve.models.repository.repository import FoundModel, Repository, fingerprint, versions
from edge_serve.models.run.runner import OnResponse, Runner, Ticket
from edge_serve.models.versions.lineage import Lineage
from edge_serve.models.versions.served import Served


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

    def in_flight(self) -> int:
        return int(self.busy)

    def oldest_batch_seconds(self) -> float | None:
        return 12.0 if self.busy else None


class FakeServed:
    """The part of a Served that the registry uses."""

    def __init__(self, name: str, version: int, busy: bool) -> None:
        self.name = self.identity = name
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

    def replace(self, before: FakeServed) -> None:
        self.lineage = before.lineage

    async def wait_released(self) -> None:
        """Nothing of it is under way elsewhere."""


class FakeLoader:
    """Opens whatever it is asked for, but for what `broken` names."""

    def __init__(self) -> None:
        self.broken: dict[tuple[str, int], EdgeServeError] = {}
        self.opened: list[FakeServed] = []
        self.busy = False
        self.gate: asyncio.Event | None = None
        self.tries = 0
        self.broken_times: float = math.inf

    def plan(self, found: FoundModel, override: Override | None) -> LoadPlan:
        if not (found.directory / "ok").exists():
            raise InvalidArgument("unreadable configuration")
        numbers = versions(found.directory)
        text = found.directory / "config.pbtxt"
        config = text_format.Parse(text.read_text() if text.exists() else "", pb.ModelConfig())
        return LoadPlan(found.name, found.directory, config, numbers, fingerprint(found.directory), override)

    async def open(self, plan: LoadPlan, version: int, *, own_worker: bool) -> FakeServed:
        if self.gate is not None:
            await self.gate.wait()
        self.tries += 1
        if (plan.name, version) in self.broken and self.tries <= self.broken_times:
            raise self.broken[plan.name, version]
        served = FakeServed(plan.name, version, self.busy)
        self.opened.append(served)
        return served

    async def close(self, served: FakeServed) -> None:
        served.closed = True


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


def test_loaded_versions_are_found_and_the_highest_is_the_default(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        house.put("m", 1, 10, 9)
        await house.registry.load("m")

        assert house.serving("m").version == "10"
        assert house.registry.lookup("m", "9").version == "9"
        assert house.registry.ready_versions("m") == ("1", "9", "10")

    play(tmp_path, scenario)


def test_lookup_tells_why_not(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        house.put("m", 1)
        await house.registry.load("m")
        registry = house.registry

        with pytest.raises(NotFound, match="Request for unknown model: 'x' is not found"):
            registry.lookup("x", "")
        with pytest.raises(NotFound, match="Request for unknown model: 'm' version 7 is not found"):
            registry.lookup("m", "7")
        await registry.unload("m")
        with pytest.raises(NotFound, match="Request for unknown model: 'm' has no available versions"):
            registry.lookup("m", "")
        with pytest.raises(Unavailable, match="'m' version 1 is not at ready state"):
            registry.lookup("m", "1")

    play(tmp_path, scenario)


def test_one_failing_version_keeps_what_served_before(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        house.put("m", 1)
        await house.registry.load("m")
        before = house.serving("m")
        house.put("m", 2, 3)
        house.loader.broken["m", 3] = Internal("no memory")

        with pytest.raises(InvalidArgument) as failure:
            await house.registry.load("m")

        assert (
            failure.value.message
            == "load failed for model 'm': version 3 is at UNAVAILABLE state: Internal: no memory;\n"
        )
        assert before is house.serving("m")
        assert not before.closed
        assert all(served.closed for served in house.loader.opened if served is not before)
        states = {version: state for _, version, state, _ in house.index()}
        assert states == {"1": "READY", "2": "UNAVAILABLE", "3": "UNAVAILABLE"}

    play(tmp_path, scenario)


@pytest.mark.parametrize(("retries", "loads"), [(1, False), (2, True)])
def test_a_version_that_fails_is_tried_again_as_often_as_asked(tmp_path: Path, retries: int, loads: bool) -> None:
    async def scenario(house: House) -> None:
        house.put("m", 1)
        house.loader.broken["m", 1] = Internal("not yet")
        house.loader.broken_times = 2

        error = (await house.registry.load_all(["m"]) or [""])[0]

        assert (error == "") is loads
        assert house.loader.tries == (3 if loads else 2)
        assert house.index() == [("m", "1", "READY", "")] or "not yet" in error

    play(tmp_path, scenario, retries=retries)


def test_a_reload_switches_then_drains_the_old_one(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        house.put("m", 1)
        house.loader.busy = True
        await house.registry.load("m")
        old = house.serving("m")
        (house.root / "m" / "1" / "weights").write_bytes(b"new")

        await house.registry.load("m")

        assert old is not house.serving("m")
        assert not old.closed
        await settle()
        assert old.runner.on_idle is not None
        old.runner.on_idle()
        await settle()
        assert old.closed
        assert house.index() == [("m", "1", "READY", "")]

    play(tmp_path, scenario)


def test_an_unchanged_model_is_not_loaded_again_but_an_override_is(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        house.put("m", 1)
        await house.registry.load("m")
        await house.registry.load("m")
        assert len(house.loader.opened) == 1

        await house.registry.load("m", Override("{}"))
        assert len(house.loader.opened) == 2

        await house.registry.load("m")
        assert len(house.loader.opened) == 2, "the override stays"
        (tmp_path / "m" / "1" / "model.py").touch()
        await house.registry.load("m")
        assert len(house.loader.opened) == 3, "until a file changes"

        await house.registry.load("m", Override("{}"))
        await house.registry.unload("m")
        await house.registry.load("m")
        plan = house.plans()["m"]
        assert plan is not None
        assert plan.override is None, "or the model is unloaded"

        await house.registry.load("m", Override("{}", {"1/model.py": b""}))
        opened = len(house.loader.opened)
        await house.registry.load("m")
        assert len(house.loader.opened) == opened + 1, "files of a load do not stay"

    play(tmp_path, scenario)


def test_a_version_of_which_a_new_configuration_says_the_same_is_left_alone(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        house.put("m", 1, 2)
        opened = []
        for text in ("", "# said anew", "version_policy { all {} }", "max_batch_size: 1"):
            (tmp_path / "m" / "config.pbtxt").write_text(text)
            if "all" in text:
                (tmp_path / "m" / "3").mkdir()
            await house.registry.load("m")
            opened.append([served.version for served in house.loader.opened])
            house.loader.opened.clear()

        assert opened == [["1", "2"], [], ["3"], ["1", "2", "3"]]

    play(tmp_path, scenario)


def test_loads_of_one_model_follow_each_other(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        house.put("m", 1)
        house.loader.gate = asyncio.Event()
        loads = [asyncio.create_task(house.registry.load("m")) for _ in range(5)]
        await settle()
        house.loader.gate.set()
        await asyncio.gather(*loads)

        assert len(house.loader.opened) == 1

    play(tmp_path, scenario)


def test_unreadable_and_absent_models_are_poll_errors(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        house.put("bad", 1, readable=False)
        for name in ("bad", "absent"):
            with pytest.raises(Internal, match=f"failed to load '{name}', failed to poll from model repository"):
                await house.registry.load(name)
        assert house.index() == [("bad", "", "UNAVAILABLE", "unreadable configuration")]

    play(tmp_path, scenario)


def test_an_absent_model_is_answered_with_the_nearest_name(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        house.put("classifier", 1)
        with pytest.raises(Internal, match=r"repository: no directory 'clasifier' in .*, did you mean 'classifier'\?$"):
            await house.registry.load("clasifier")
        with pytest.raises(Internal, match=r"no directory 'else' in [^,]*$"):
            await house.registry.load("else")

    play(tmp_path, scenario)


def test_a_fault_of_ours_costs_one_model_and_not_those_beside_it(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        for name in ("good", "unplanned", "unmade"):
            house.put(name, 1)
        plan = house.loader.plan

        def faulty(found: FoundModel, override: Override | None) -> LoadPlan:
            if found.name == "unplanned":
                raise ValueError("not thought of")
            planned = plan(found, override)
            if found.name == "unmade":
                planned.versions = cast(list[int], ["not a number"])
            return planned

        house.loader.plan = faulty  # type: ignore[method-assign]

        failures = await house.registry.load_all()

        assert failures == [
            "load failed for model 'unmade': ValueError: invalid literal for int() with base 10: 'not a number'",
            "failed to load 'unplanned', failed to poll from model repository: ValueError, see the server's log",
        ]
        assert house.serving("good").version == "1"

    play(tmp_path, scenario)


def test_unload_waits_for_the_last_answer(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        house.put("m", 1)
        house.loader.busy = True
        await house.registry.load("m")
        served = house.serving("m")

        unload = asyncio.create_task(house.registry.unload("m"))
        await settle()
        assert house.index() == [("m", "1", "UNLOADING", "")]
        assert not unload.done()
        assert served.runner.on_idle is not None
        served.runner.on_idle()
        await unload

        assert house.index() == [("m", "1", "UNAVAILABLE", "unloaded")]
        await house.registry.unload("never seen")

    play(tmp_path, scenario)


def test_readiness_counts_every_version_of_the_models_that_matter(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        house.put("m", 1)
        house.put("broken", 1)
        house.loader.broken["broken", 1] = Internal("x")
        assert house.registry.is_ready()

        assert len(await house.registry.load_all()) == 1

        assert not house.registry.is_ready()

    play(tmp_path, scenario)


def test_the_index_says_why_nothing_of_a_model_could_be_tried(tmp_path: Path) -> None:
    async def work(house: House) -> None:
        def told() -> dict[str, tuple[str, str]]:
            return {one.name: (one.state, one.reason) for one in house.entries()}

        house.put("bare")
        for name in ("bare", "nobody"):
            with pytest.raises(EdgeServeError):
                await house.registry.load(name)
        assert list(told()) == list(house.registry.load_history.reasons) == ["bare"]
        assert told()["bare"][0] == "UNAVAILABLE"
        assert "at least one version" in told()["bare"][1]

        await house.registry.unload("bare")
        assert told() == {"bare": ("", "")}
        with pytest.raises(EdgeServeError):
            await house.registry.load("bare")
        house.put("bare", 1)
        await house.registry.load("bare")
        assert told()["bare"] == ("READY", "")
        assert not house.registry.load_history.reasons

    play(tmp_path, work)


def test_a_model_without_a_version_is_not_ready(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        house.put("m", 1)
        house.put("bare")
        await house.registry.load_all()
        assert not house.registry.is_ready()
        with pytest.raises(NotFound) as caught:
            house.registry.lookup("bare", "")
        assert caught.value.message == (
            "Request for unknown model: 'bare' has no available versions; it failed to load: edge-serve status and the "
            "log of the server say why"
        )
        with pytest.raises(NotFound, match=r"^Request for unknown model: 'nowhere' is not found$"):
            house.registry.lookup("nowhere", "")

        await house.registry.unload("bare")
        assert house.registry.is_ready()  # nobody wants it any more

        with pytest.raises(EdgeServeError, match="at least one version"):
            await house.registry.load("bare")
        assert not house.registry.is_ready()
        house.put("bare", 1)
        await house.registry.load("bare")
        assert house.registry.is_ready()

    play(tmp_path, scenario)


def test_each_version_that_serves_or_should_has_its_readiness(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        def told() -> list[tuple[str, str, bool]]:
            return [(one.name, one.version, one.ready) for one in house.registry.readiness()]

        house.put("bare")
        house.put("m", 1, 2)
        house.put("unread", 1, readable=False)
        house.loader.broken["m", 2] = Internal("v2 is bad")
        assert told() == []
        await house.registry.load_all()
        assert told() == [("bare", "", False), ("m", "2", False), ("unread", "", False)]

        (tmp_path / "m" / "2").rmdir()
        await house.registry.load("m")
        house.registry.load_history.left_out["fatal"] = "the server died over it"
        assert told() == [("bare", "", False), ("fatal", "", False), ("m", "1", True), ("unread", "", False)]

        house.serving("m").healthy = False
        await house.registry.unload("bare")
        await house.registry.unload("unread")
        assert told() == [("fatal", "", False), ("m", "1", False)]
        await house.registry.unload("m")
        assert told() == [("fatal", "", False)]

    play(tmp_path, scenario)


BAD = Internal("v2 is bad")


def load_bad_version(house: House) -> Coroutine[Any, Any, None]:
    """Version 1 serves, and version 2 does not load."""

    async def load() -> None:
        house.put("m", 1)
        await house.registry.load("m")
        house.put("m", 2)
        house.loader.broken["m", 2] = BAD
        with pytest.raises(EdgeServeError):
            await house.registry.load("m")
        assert not house.registry.is_ready()

    return load()


@pytest.mark.parametrize("again", ["nothing new", "changed"])
def test_a_failed_version_counts_no_more_when_a_load_without_it_succeeds(tmp_path: Path, again: str) -> None:
    async def scenario(house: House) -> None:
        await load_bad_version(house)
        (tmp_path / "m" / "2").rmdir()
        if again == "changed":
            (tmp_path / "m" / "1" / "model.py").touch()
        await house.registry.load("m")

        assert house.registry.is_ready()
        assert ("m", "2", "UNAVAILABLE", "Internal: v2 is bad") in house.index()  # as Triton's
        assert [one.word for one in house.registry.summaries()] == ["ready"]

        house.put("m", 2)  # bad as ever
        with pytest.raises(EdgeServeError):
            await house.registry.load("m")
        assert not house.registry.is_ready()

    play(tmp_path, scenario)


def test_a_failed_version_counts_while_it_lies_in_the_repository_and_is_wanted(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        await load_bad_version(house)
        await house.registry.dismiss_gone()
        assert not house.registry.is_ready()

        (tmp_path / "m" / "2").rmdir()
        await house.registry.dismiss_gone()
        assert house.registry.is_ready()

    play(tmp_path, scenario)


def test_a_model_that_failed_counts_until_it_is_unloaded(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        house.put("m", 1)
        house.loader.broken["m", 1] = BAD
        for _ in range(2):
            with pytest.raises(EdgeServeError):
                await house.registry.load("m")
            await house.registry.dismiss_gone()
            assert not house.registry.is_ready()
            await house.registry.unload("m")
            assert house.registry.is_ready()
            assert house.index() == [("m", "1", "UNAVAILABLE", "Internal: v2 is bad")]  # as Triton's

    play(tmp_path, scenario)


def test_a_version_that_drains_beside_its_successor_does_not_count(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        house.loader.busy = True
        house.put("m", 1)
        await house.registry.load("m")
        first = house.serving("m")
        (tmp_path / "m" / "1").rmdir()
        house.put("m", 2)
        await house.registry.load("m")
        assert [state for _, _, state, _ in house.index()] == ["UNLOADING", "READY"]
        assert house.registry.is_ready()
        assert [(one.version, one.requests, one.seconds) for one in house.registry.busy()] == [
            ("1", 1, 12),
            ("2", 1, 12),
        ]

        unloading = asyncio.create_task(house.registry.unload("m"))
        await asyncio.sleep(0.01)
        assert not house.registry.is_ready(), "as Triton, while nothing of the model serves"
        for served in (first, *house.loader.opened):
            if served.runner.on_idle is not None:
                served.runner.on_idle()
        await unloading
        await asyncio.sleep(0.01)
        assert house.registry.is_ready()

    play(tmp_path, scenario)


def test_required_models_alone_decide_readiness(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        house.put("m", 1)
        house.put("broken", 1)
        house.loader.broken["broken", 1] = Internal("x")
        assert not house.registry.is_ready()
        await house.registry.load_all()
        assert house.registry.is_ready()

        house.serving("m").healthy = False
        assert not house.registry.is_ready()

    play(tmp_path, scenario, required=("m",))


def test_close_gives_up_on_what_stays_busy(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        house.put("idle", 1)
        await house.registry.load("idle")
        house.loader.busy = True
        house.put("busy", 1)
        await house.registry.load("busy")

        assert await house.registry.close(0.05) == 1

    play(tmp_path, scenario)


@pytest.mark.parametrize("name", ["", " ", "../x", "a/b", "a\\b", "a\x00", "caf\udce9"])
def test_names_that_leave_the_repository_are_refused(name: str) -> None:
    with pytest.raises(InvalidArgument):
        check_name(name)


@pytest.mark.parametrize("text", ["-1", "x", "1.5", str(1 << 63), ""])
def test_versions_are_positive_numbers(text: str) -> None:
    with pytest.raises(InvalidArgument, match="version should be an integral value > 0"):
        parse_version(text)


@pytest.mark.parametrize("name", [".", " . ", "..", " ..", "../m", "a/b", "a\\b", "a\x00b", " ", "\ud800"])
def test_names_that_could_leave_the_repository_are_refused(name: str) -> None:
    with pytest.raises(InvalidArgument, match=r"must not contain path|cannot be empty|must be UTF-8"):
        check_name(name)


@pytest.mark.parametrize("name", ["a\nb", "a\x1b[31m", "a\x7f", "a\x85", "a\u2028b", "gpj.\u202eexe", "a\u2066b"])
def test_names_that_would_garble_a_line_are_refused(name: str) -> None:
    with pytest.raises(InvalidArgument, match="must not contain control characters"):
        check_name(name)


def test_names_may_have_dots_dashes_blanks_and_letters_of_any_script() -> None:
    for name in (
        "...",
        "..m",
        "m..1",
        "m.1",
        ".m",
        "-rf",
        "a b",
        "caf\u00e9",
        "\u0645\u06cc\u200c\u062e",
        "\U0001f600",
    ):
        check_name(name)


def test_a_registry_serves_what_it_opened(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        house.put("m", 1, 2)
        house.put("n", 1)
        await house.registry.load_all()

        served: list[Served] = house.registry.served()
        assert [(one.name, one.version) for one in served] == [("m", "1"), ("m", "2"), ("n", "1")]

    play(tmp_path, scenario)
