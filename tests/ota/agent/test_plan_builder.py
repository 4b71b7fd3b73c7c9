"""Plans that a device builds: once for each set of inputs, sealed, and built again when they were changed."""

from __future__ import annotations

import errno
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ota import files
from ota.agent.plan_builder import PlanBuilder, plan_key
from ota.documents.manifest import FileEntry, Manifest, PlanBuild, Variant, read_manifest
from ota.errors import NoSpace, ServerError, TrialFailed, Unsuitable, Untrusted
from ota.layout import StateLayout
from ota.server.build import UnitBuild
from ota.server.unit import ask_unit
from ota.store import directories, releases, scrub
from tests.backends import onnx_models
from tests.ota.bundles import manifest_bytes, sha256
from tests.ota.server.units import accepting

FACTS = {"arch": "aarch64", "tensorrt": "10.3.0.30", "sm": "8.7", "driver": "540.4", "memory_bytes": "1"}
BUILD = PlanBuild("det", "17/model.onnx", "17/model.plan", 64, 30, options=("--fp16",))


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "edge-serve"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} {Path(__file__).parents[1]}/server/edge_serve_build.py "$@"\n')
    path.chmod(0o755)
    return str(path)


class Scene:
    """An installed release with an ONNX file, and the builder of a device."""

    def __init__(self, folder: Path, program: str, content: bytes = b"graph") -> None:
        self.layout = StateLayout(folder / "state")
        self.facts = dict(FACTS)
        directories.prepare(self.layout)
        blob = self.layout.blob(sha256(content))
        blob.parent.mkdir(parents=True)
        blob.write_bytes(content)
        entry = FileEntry("17/model.onnx", sha256(content), len(content))
        self.variant = Variant("build", "onnx-build", 1, build=(BUILD,))
        self.manifest = Manifest("det", "vision", 17, 1, {"det": (entry,)}, (self.variant,))
        releases.install(self.layout, self.manifest, self.variant, "0" * 64)
        self.builds = UnitBuild("", program, self.layout.plans / "made")

    @property
    def plan(self) -> Path:
        return self.layout.release("det", 17) / "17/model.plan"

    def build(self) -> float:
        directories = {"det": self.layout.release("det", 17)}
        return PlanBuilder(self.layout, self.builds, lambda: self.facts).build(self.manifest, self.variant, directories)

    def cached(self) -> Path:
        (found,) = self.layout.plans.glob("*.plan")
        return found


def test_a_plan_is_built_once_and_belongs_to_the_release(tmp_path: Path, program: str) -> None:
    scene = Scene(tmp_path, program)
    assert scene.build() == 1.5
    assert scene.plan.read_bytes() == b"plan of graph fp16"
    record = releases.find_complete(scene.layout, "det", 17)
    assert record is not None
    assert record.built.keys() == {"17/model.plan"}
    assert list(scrub.scrub(scene.layout, [("det", 17)])) == []

    releases.install(scene.layout, scene.manifest, scene.variant, "0" * 64)
    assert scene.plan.exists(), "a run that goes on must not lose the plan"
    assert scene.build() == 0.0, "it is in the cache"
    scene.plan.write_bytes(b"plan of graph fp17")
    assert [damage.path for damage in scrub.scrub(scene.layout, [("det", 17)])] == ["17/model.plan"]


@pytest.mark.fault("V2")
@pytest.mark.parametrize("kind", ["changed", "cut", "other key", "other plan", "no seal", "seal torn", "gone"])
def test_a_plan_that_was_changed_or_is_of_another_device_is_built_again(
    tmp_path: Path, program: str, kind: str
) -> None:
    scene = Scene(tmp_path, program)
    scene.build()
    plan = scene.cached()
    os.unlink(scene.plan)  # a hard link to the same bytes
    seal = plan.with_suffix(".seal")
    if kind == "changed":
        plan.write_bytes(b"plan of graph fp17")
    elif kind == "cut":
        plan.write_bytes(b"")
    elif kind == "other key":
        (scene.layout.identity / "plans.key").write_bytes(b"x" * 32)
    elif kind == "other plan":
        moved = plan.with_name(f"{'0' * 64}.plan")
        plan.rename(moved)
        seal.rename(moved.with_suffix(".seal"))
    elif kind == "no seal":
        seal.unlink()
    elif kind == "seal torn":
        seal.write_bytes(seal.read_bytes()[:20])
    else:
        plan.unlink()
    assert scene.build() == 1.5
    assert scene.plan.read_bytes() == b"plan of graph fp16"


@pytest.mark.fault("V5")
def test_another_driver_or_option_is_another_plan(tmp_path: Path, program: str) -> None:
    keys = {
        plan_key("0" * 64, BUILD, {**FACTS, fact: "x"}) for fact in ("arch", "tensorrt", "sm", "gpu", "driver", "l4t")
    }
    keys |= {
        plan_key("0" * 64, BUILD, FACTS),
        plan_key("1" * 64, BUILD, FACTS),
        plan_key("0" * 64, replace(BUILD, options=()), FACTS),
    }
    assert len(keys) == 9
    assert plan_key("0" * 64, BUILD, {**FACTS, "memory_bytes": "2"}) in keys
    scene = Scene(tmp_path, program)
    scene.build()
    scene.facts["driver"] = "600"
    assert scene.build() == 1.5


@pytest.mark.fault("V3")
@pytest.mark.parametrize(
    ("content", "error", "reason"),
    [
        (b"breaks", TrialFailed, "node 7: no implementation"),
        (b"dies", TrialFailed, "ended with 137"),
        (b"full", ServerError, "the disk is full"),
    ],
)
def test_a_build_that_fails_is_one_clear_error(
    tmp_path: Path, program: str, content: bytes, error: type[Exception], reason: str
) -> None:
    with pytest.raises(error, match=f"the build of model.onnx failed: .*{reason}"):
        Scene(tmp_path, program, content).build()


@pytest.mark.fault("V3")
def test_a_build_that_hangs_ends_with_its_limit(tmp_path: Path) -> None:
    (tmp_path / "slow").write_text("#!/bin/sh\nsleep 60\n")
    (tmp_path / "slow").chmod(0o755)
    scene = Scene(tmp_path, str(tmp_path / "slow"))
    scene.variant = replace(scene.variant, build=(replace(BUILD, timeout_seconds=1),))
    with pytest.raises(ServerError, match="did not end within 1 s and was killed"):
        scene.build()


@pytest.mark.slow
def test_the_command_itself_builds_over_a_stand_in_for_tensorrt(tmp_path: Path) -> None:
    root, program = Path(__file__).parents[3], tmp_path / "edge-serve"
    program.write_text(
        f'#!/bin/sh\nPYTHONPATH={root}/tests/stand_ins:{root} exec {sys.executable} -m edge_serve "$@"\n'
    )
    program.chmod(0o755)
    onnx = onnx_models.add_sub(tmp_path / "model.onnx", (2, 4), onnx_models.FLOAT)
    scene = Scene(tmp_path, str(program), onnx.read_bytes())
    assert 0 < scene.build() < 60
    assert scene.plan.read_bytes().startswith(b"STAND-IN PLAN")
    assert list(scrub.scrub(scene.layout, [("det", 17)])) == []
    assert json.loads(scene.cached().read_bytes().partition(b"\n")[2])["flags"] == ["FP16", "TF32"]
    made = scene.layout.plans / "made"
    assert (made / "timing.cache").is_file()
    assert len(list((made / "cache").glob("*.plan.meta.json"))) == 1


def test_the_unit_builds_what_lies_in_releases_and_with_known_options_only(tmp_path: Path, program: str) -> None:
    scene = Scene(tmp_path, program)
    path, state = tmp_path / "build.sock", tmp_path / "unit"
    unit = [
        sys.executable,
        "-m",
        "ota",
        "run-build",
        "--edge-serve",
        program,
        "--state-dir",
        str(scene.layout.state_dir),
    ]
    scene.builds = UnitBuild(str(path), "", tmp_path)
    with accepting(path, ["env", f"STATE_DIRECTORY={state}", *unit]):
        assert scene.build() == 1.5
        assert scene.plan.read_bytes() == b"plan of graph fp16"
        good = {
            "onnx": str(scene.layout.release("det", 17) / "17/model.onnx"),
            "key": "0" * 64,
            "workspace_mb": 1,
            "limit": 9,
        }
        for wrong, reason in (
            ({"onnx": "/etc/passwd"}, "expected a path below"),
            ({"key": "../x"}, "64 hexadecimal digits"),
            ({"options": ["--plugins=/tmp/x.so"]}, "is not known"),
            ({"options": None}, "is not known"),
            ({"options": "--fp16"}, "is not known"),
            ({"options": ["--min-shapes=\0"]}, "is not known"),
            ({"options": ["--min-shapes=\ud800"]}, "is not known"),
            ({"limit": 0}, "lacks"),
        ):
            found = ask_unit(str(path), {**good, "options": [], **wrong}, 9)
            assert reason in found["error"], wrong
    scene.variant = replace(scene.variant, build=(replace(BUILD, options=("--output=/x",)),))
    with pytest.raises(Unsuitable, match="variant build cannot be built: the option '--output=/x'"):
        scene.build()
    scene.variant = replace(scene.variant, build=(replace(BUILD, onnx="17/other.onnx"),))
    with pytest.raises(Unsuitable, match=r"from 17/other\.onnx, which det lacks"):
        scene.build()


@pytest.mark.fault("V3")
@pytest.mark.parametrize("seconds", ['"x"', "1e999", "-1", "{}"])
def test_seconds_of_a_unit_that_are_none_end_no_build(tmp_path: Path, seconds: str) -> None:
    scene = Scene(tmp_path, "")
    key = plan_key(sha256(b"graph"), BUILD, FACTS)
    (tmp_path / f"{key}.plan").write_bytes(b"plan")
    answer = f'{{"ok": true, "plan": "{tmp_path}/{key}.plan", "seconds": {seconds}}}'
    scene.builds = UnitBuild(str(tmp_path / "build.sock"), "", tmp_path)
    with accepting(tmp_path / "build.sock", ["sh", "-c", 'cat > /dev/null; printf %s "$1"', "-", answer]):
        assert scene.build() == 0.0


@pytest.mark.fault("T9")
def test_the_unit_names_no_other_file_of_the_agent_as_its_plan(tmp_path: Path) -> None:
    answer = f'{{"ok": true, "plan": "{tmp_path}/state/identity/device.key", "seconds": 1}}'
    scene = Scene(tmp_path, "")
    scene.layout.identity.mkdir()
    (scene.layout.identity / "device.key").write_bytes(b"secret")
    scene.builds = UnitBuild(str(tmp_path / "build.sock"), "", tmp_path)
    with (
        accepting(tmp_path / "build.sock", ["sh", "-c", 'cat > /dev/null; printf %s "$1"', "-", answer]),
        pytest.raises(ServerError, match=r"answered with the plan '.*device.key', expected .*\.plan"),
    ):
        scene.build()
    assert not list(scene.layout.state_dir.rglob("*.plan"))


def test_a_plan_that_fills_the_disk_is_not_copied(
    tmp_path: Path, program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ota.agent.plan_builder.MOST_PLAN", 10)
    with pytest.raises(ServerError, match="it is not used"):
        Scene(tmp_path, program).build()


@pytest.mark.fault("D1")
@pytest.mark.parametrize("kind", ["write", "fsync", "rename"])
def test_a_copy_of_a_plan_that_fails_takes_no_space(
    tmp_path: Path, program: str, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    scene = Scene(tmp_path, program)

    def fail(operation: files.DiskOperation) -> None:
        if operation.kind == kind and operation.path.endswith(".plan.new"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), operation.path)

    with monkeypatch.context() as patched:
        patched.setattr(files, "point", fail)
        with pytest.raises(NoSpace):
            scene.build()
    assert list(scene.layout.plans.glob(".*")) == []
    assert scene.build() == 1.5


@pytest.mark.parametrize(("member", "value"), [("plan", "config.pbtxt"), ("timeout_seconds", 86_400)])
def test_a_manifest_names_a_plan_and_a_time_for_it(member: str, value: object) -> None:
    build = {"model": "det", "onnx": "17/model.onnx", "plan": "17/model.plan", member: value}
    variant = {"id": "build", "kind": "onnx-build", "priority": 1, "build": [build]}
    with pytest.raises(Untrusted, match=r"\.plan|from 1 to 7200"):
        read_manifest(manifest_bytes("det", 17, None, variants=[variant]), "det", 17)
