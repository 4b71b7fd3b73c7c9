"""What happens to a batch: joining, shapes, types, errors of one request, and threads."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_serve.backends.base import InstanceSpec
from edge_serve.messages.tensors import Array
from packs.fil.instance import FilInstance
from packs.fil.library import load_treelite
from packs.fil.settings import read_settings
from tests.backends.hosting import RecordingHost, installed
from tests.packs.fil.libraries import need_models, need_treelite
from tests.packs.fil.scene import answer, ask, case, make_model, opened, parameters, tensors

need_treelite()
MODELS = need_models()


def instance_of(name: str, tmp_path: Path, config: dict[str, Any] | None = None) -> tuple[FilInstance, Array, Array]:
    """Return an instance of a trained model, inputs, and what its library predicts."""
    file, given, inputs, expected = case(MODELS / name)
    _, (instance,) = opened(make_model(tmp_path, file, parameters(**given) | (config or {})))
    return instance, inputs, expected


def test_a_batch_of_requests_is_split_again(tmp_path: Path) -> None:
    instance, inputs, expected = instance_of("xgboost_classes", tmp_path)
    replies = ask(instance, inputs[:1], inputs[1:4], inputs[:0], inputs[4:6])
    assert [reply.outputs[0].shape for reply in replies] == [(1, 4), (3, 4), (0, 4), (2, 4)]
    found = np.concatenate([reply.outputs[0].array() for reply in replies])
    np.testing.assert_allclose(found, expected[:6], atol=1e-6)


def test_an_empty_batch_has_no_rows(tmp_path: Path) -> None:
    instance, inputs, _ = instance_of("forest_class", tmp_path)
    assert answer(instance, inputs[:0]).shape == (0,)


def test_dims_of_1_are_left_out_as_in_triton(tmp_path: Path) -> None:
    instance, inputs, _ = instance_of("xgboost_class", tmp_path)
    assert answer(instance, inputs[:3]).shape == (3,)


def test_one_score_of_a_binary_classifier(tmp_path: Path) -> None:
    instance, inputs, expected = instance_of("xgboost_binary", tmp_path, tensors(12, 1))
    np.testing.assert_allclose(answer(instance, inputs[:9]), expected[:9, 1], atol=1e-6)


def test_a_wrong_width_is_the_error_of_its_request(tmp_path: Path) -> None:
    config = tensors(-1, 1)
    instance, inputs, expected = instance_of("xgboost_regression", tmp_path, config)
    good, bad = ask(instance, inputs[:2], inputs[:2, :5])
    np.testing.assert_allclose(good.outputs[0].array(), expected[:2], rtol=1e-6)
    assert bad.error is not None
    assert "has the shape [5], expected 12 features in a row" in bad.error.message


@pytest.mark.parametrize("dims", [[-1, 12], [12]])
def test_a_model_without_batching(dims: list[int], tmp_path: Path) -> None:
    config = {
        "input": [{"name": "input__0", "data_type": "TYPE_FP32", "dims": dims}],
        "output": [{"name": "output__0", "data_type": "TYPE_FP32", "dims": [*dims[:-1], 4]}],
    }
    instance, inputs, expected = instance_of("xgboost_classes", tmp_path, config)
    rows = inputs[:3] if len(dims) == 2 else inputs[0]
    np.testing.assert_allclose(answer(instance, rows), expected[:3] if len(dims) == 2 else expected[0], atol=1e-6)


def test_double_precision(tmp_path: Path) -> None:
    config = tensors(12, 1)
    for entry in (*config["input"], *config["output"]):
        entry["data_type"] = "TYPE_FP64"
    instance, inputs, expected = instance_of("lightgbm_regression", tmp_path, config)
    found = answer(instance, inputs.astype(np.float64))
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, expected)  # the same additions in the same order


def test_values_that_do_not_lie_aligned(tmp_path: Path) -> None:
    instance, inputs, expected = instance_of("xgboost_regression", tmp_path)
    data = memoryview(bytearray(b"\0" + inputs[:2].tobytes()))[1:]
    from tests.backends.hosting import request, tensor

    one = tensor("input__0", inputs[:2])
    one.data = data
    from edge_serve.backends.base import Timing

    (reply,) = instance.execute([request(one, outputs=("output__0",))], Timing())
    np.testing.assert_allclose(reply.outputs[0].array(), expected[:2], rtol=1e-6)


def test_instances_share_the_cores(tmp_path: Path) -> None:
    cores = len(os.sched_getaffinity(0))
    file, given, *_ = case(MODELS / "forest_class")
    spec = make_model(tmp_path, file, parameters(**given))
    backend, (first,) = opened(spec)
    assert first.threads == cores
    added = backend.open(spec, [InstanceSpec("m_1"), InstanceSpec("m_2")])
    assert {one.threads for one in (first, *added)} == {max(1, cores // 3)}
    added[0].close()
    backend.open(spec, [InstanceSpec("m_3")])
    assert first.threads == max(1, cores // 3)


def test_cpu_nthread_sets_the_threads(tmp_path: Path) -> None:
    instance, *_ = instance_of("forest_class", tmp_path, parameters(cpu_nthread="1"))
    assert instance.threads == 1


def test_no_more_threads_than_openmp_has(tmp_path: Path) -> None:
    """Treelite refuses more, and only a batch that is large enough would ask for them."""
    most = load_treelite().most_threads
    with installed(host := RecordingHost()):
        instance, inputs, expected = instance_of("forest_class", tmp_path, parameters(cpu_nthread=str(most + 1)))
    assert instance.threads == most
    text = f"cpu_nthread is {most + 1}, and OpenMP has {most} (processors, or OMP_NUM_THREADS): {most} compute"
    assert any(text in line for _, line in host.lines)
    many = np.repeat(inputs[:1], 20_000, axis=0)
    np.testing.assert_allclose(answer(instance, many)[-1], expected[0], rtol=1e-6)


def test_threads_at_once_get_the_same_answers(tmp_path: Path) -> None:
    instance, inputs, _ = instance_of("forest_classes3", tmp_path)
    expected = answer(instance, inputs)
    found: list[Array] = []
    threads = [threading.Thread(target=lambda: found.append(answer(instance, inputs))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.array_equal(one, expected) for one in found)
    assert len(found) == 4


def test_a_gpu_instance_computes_on_the_cpu_and_says_so(tmp_path: Path) -> None:
    file, given, *_ = case(MODELS / "forest_class")
    spec = make_model(tmp_path, file, parameters(**given, predict_prob="true"))
    host = RecordingHost()
    backend, _ = opened(spec)
    with installed(host):
        backend.open(spec, [InstanceSpec("m_0", "GPU")])
    assert host.lines == [
        ("WARNING", "model 'm': parameter 'predict_prob' has no effect, did you mean 'predict_proba'?"),
        ("WARNING", "model 'm': backend 'fil' computes on the CPU, also for KIND_GPU"),
    ]


@pytest.mark.parametrize("name", ["xgboost_binary", "xgboost_classes", "xgboost_dart", "xgboost_ubj"])
@pytest.mark.parametrize("early", [True, False])
def test_rounds_after_the_best_one_are_a_warning(name: str, early: bool, tmp_path: Path) -> None:
    file, given, *_ = case(MODELS / name)
    spec = make_model(tmp_path, file, parameters(**given))
    backend, _ = opened(spec)
    facts = backend._load(spec, read_settings(spec.config)).facts
    backend.close()
    best = str(facts.trees // facts.classes - (2 if early else 1)).encode()  # as XGBoost writes it, which counts from 0
    member = b'"best_iteration":"%b"' % best
    if file.suffix == ".ubj":
        member = b"L\0\0\0\0\0\0\0\x0ebest_iterationSL" + len(best).to_bytes(8, "big") + best
    written = spec.version_directory / file.name
    changed = re.sub(
        rb"attributes(\"?:?)\{\}", lambda found: b"attributes%b{%b}" % (found[1], member), file.read_bytes()
    )
    assert len(changed) > file.stat().st_size
    written.write_bytes(changed)
    host = RecordingHost()
    with installed(host):
        opened(spec)
    text = f"model 'm': the file has rounds after best_iteration {best.decode()}, and all are summed"
    assert [line[1][: len(text)] for line in host.lines] == ([text] if early else [])
