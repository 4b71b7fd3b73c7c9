"""Plans of loads: what a load changes about the versions that serve."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from edge_serve.clock import MonotonicClock
from edge_serve.config.model import model_config_pb2 as pb
from edge_serve.errors import InvalidArgument
from edge_serve.models.load.load_plan import LoadPlan
from edge_serve.models.load.loading import Loader, LoaderOptions
from edge_serve.models.repository.override import Override
from edge_serve.models.repository.repository import FoundModel
from edge_serve.models.versions.served import Served

FILES = (("1/model.py", 10, 5, 1), ("2/model.py", 10, 5, 2), ("config.pbtxt", 10, 5, 3))
PLAN = LoadPlan("m", Path("/models/m"), pb.ModelConfig(name="m", max_batch_size=4), [1, 2], FILES)


def config(**fields: object) -> pb.ModelConfig:
    made = pb.ModelConfig()
    made.CopyFrom(PLAN.config)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def written(path: str) -> tuple[tuple[str, int, int, int], ...]:
    """The files after one of them was written again."""
    return tuple((name, 20 if name == path else time, size, inode) for name, time, size, inode in FILES)


def test_a_plan_is_the_same_while_files_and_configuration_say_the_same() -> None:
    assert replace(PLAN).same_as(PLAN)
    assert replace(PLAN, print=written("config.pbtxt")).same_as(PLAN)
    assert not replace(PLAN, print=written("config.pbtxt"), config=config(max_batch_size=8)).same_as(PLAN)
    assert not replace(PLAN, print=written("1/model.py")).same_as(PLAN)
    assert not replace(PLAN, directory=Path("/other/m")).same_as(PLAN)
    assert not replace(PLAN, override=Override("{}")).same_as(PLAN)


def test_a_version_is_kept_while_its_own_files_did_not_change() -> None:
    after = replace(PLAN, print=written("2/model.py"))
    assert [after.serves_same(version, PLAN) for version in (1, 2)] == [True, False]
    assert not PLAN.serves_same(1, None)
    assert not replace(PLAN, config=config(max_batch_size=8)).serves_same(1, PLAN)


def test_the_size_of_a_load_is_that_of_the_files_that_it_reads() -> None:
    assert PLAN.file_bytes([1, 2]) == 10
    assert replace(PLAN, override=Override("{}")).file_bytes([1]) == 5
    sent = Override("{}", {"1/model.py": bytes(70), "shared": bytes(3)})
    assert replace(PLAN, print=(), override=sent).file_bytes([1]) == 73


def test_the_configuration_of_a_load_request_stays_until_a_file_changes() -> None:
    asked = replace(PLAN, override=Override("{}"))
    assert PLAN.preserves_override(asked)
    assert not PLAN.preserves_override(PLAN)
    assert not replace(PLAN, print=written("1/model.py")).preserves_override(asked)
    assert not PLAN.preserves_override(replace(PLAN, override=Override("{}", {"1/model.py": b""})))
    assert not replace(PLAN, override=Override("{ }")).preserves_override(asked)


def test_only_instances_change_when_nothing_but_their_groups_did() -> None:
    more = config()
    more.instance_group.add(name="g", count=3)
    served = cast(Served, SimpleNamespace(opened=object(), config=PLAN.config))
    assert replace(PLAN, config=more).changes_instances_only(1, PLAN, served)
    assert not replace(PLAN, config=config(max_batch_size=8)).changes_instances_only(1, PLAN, served)
    assert not replace(PLAN, config=more, print=written("1/model.py")).changes_instances_only(1, PLAN, served)
    assert not replace(PLAN, config=more).changes_instances_only(1, None, served)
    ensemble = cast(Served, SimpleNamespace(opened=None, config=PLAN.config))
    assert not replace(PLAN, config=more).changes_instances_only(1, PLAN, ensemble)


def plan_with(directory: Path, worker: str) -> LoadPlan:
    """The plan of a model whose configuration has EDGE_SERVE_WORKER."""
    (directory / "1").mkdir(parents=True)
    (directory / "1/model.py").touch()
    parameter = f'parameters {{ key: "EDGE_SERVE_WORKER" value {{ string_value: "{worker}" }} }}'
    (directory / "config.pbtxt").write_text(f'backend: "python"\n{parameter}\n')
    nothing = cast(Any, None)
    return Loader(nothing, nothing, MonotonicClock(), LoaderOptions()).plan(FoundModel("m", directory), None)


def test_the_configuration_chooses_the_worker(tmp_path: Path) -> None:
    own, shared = (plan_with(tmp_path / worker / "m", worker) for worker in ("own", "shared"))
    assert [plan.gets_own_worker(default) for plan in (own, shared, PLAN) for default in (False, True)] == [
        True, True, False, False, False, True,
    ]  # fmt: skip


def test_a_worker_that_cannot_be_chosen_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="EDGE_SERVE_WORKER of model 'm' is 'Own', expected own or shared"):
        plan_with(tmp_path / "m", "Own")


@pytest.mark.parametrize(
    ("backend", "advice"),
    [("pytorch", "it is in the pack: edge-serve pack install pytorch"), ("fil", "leave 'runtime' out")],
)
def test_a_runtime_that_the_backend_lacks_is_refused(tmp_path: Path, backend: str, advice: str) -> None:
    """Triton's pytorch backend has one more, for classes of torch.nn.Module in a model.py."""
    (tmp_path / "m/1").mkdir(parents=True)
    (tmp_path / "m/1/model.pt").touch()
    (tmp_path / "m/config.pbtxt").write_text(f'backend: "{backend}"\nruntime: "model.py"\n')
    nothing = cast(Any, None)
    loader = Loader(nothing, nothing, MonotonicClock(), LoaderOptions())
    with pytest.raises(InvalidArgument, match=rf"^unable to find backend library 'model.py' for model 'm'; {advice}"):
        loader.plan(FoundModel("m", tmp_path / "m"), None)
