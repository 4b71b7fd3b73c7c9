"""From configuration to scheduler."""

from __future__ import annotations

import pytest

from edge_serve.config.model import model_config_pb2 as pb
from edge_serve.errors import Unsupported
from edge_serve.scheduling.core import DynamicBatching, QueuePolicy
from edge_serve.scheduling.direct import DirectScheduler
from edge_serve.scheduling.dynamic import DynamicScheduler
from edge_serve.scheduling.policy import dynamic_batching, scheduler_for

from .simulation import entry, ids, settle


def test_no_batcher_means_one_request_per_run() -> None:
    scheduler = scheduler_for(pb.ModelConfig(name="m", max_batch_size=8), 1)
    scheduler.add(entry(0, id="a"), 0)
    scheduler.add(entry(0, id="b"), 0)

    assert isinstance(scheduler, DirectScheduler)
    assert ids(settle(scheduler, 0)[0]) == [["a"]]


def test_only_python_models_may_wait_for_each_other() -> None:
    ahead = []
    for backend in ("python", "onnxruntime"):
        scheduler = scheduler_for(pb.ModelConfig(name="m", backend=backend), 1)
        assert isinstance(scheduler, DirectScheduler)
        for number in range(100):
            scheduler.pace(10_000)
            scheduler.add(entry(0, id=str(number)), 0)
        ahead.append(len(settle(scheduler, 0)[0]))

    assert ahead == [1, 2]


def test_dynamic_batching_without_a_batch_dimension_has_a_queue_and_no_batches() -> None:
    config = pb.ModelConfig(name="m", max_batch_size=0)
    config.dynamic_batching.priority_levels = 2
    config.dynamic_batching.default_priority_level = 2
    scheduler = scheduler_for(config, 3, passive=[0])
    scheduler.add(entry(0, id="a"), 0)
    scheduler.add(entry(0, id="b", priority=1), 0)
    runs, _, _ = settle(scheduler, 0)

    assert isinstance(scheduler, DynamicScheduler)
    assert ids(runs) == [["b"], ["a"]]
    assert {run.instance for run in runs} == {1, 2}


def test_every_field_arrives() -> None:
    config = pb.ModelConfig(name="m", max_batch_size=8)
    batching = config.dynamic_batching
    batching.preferred_batch_size.extend([2, 4])
    batching.max_queue_delay_microseconds = 7
    batching.priority_levels = 3
    batching.default_priority_level = 2
    batching.default_queue_policy.default_timeout_microseconds = 11
    batching.default_queue_policy.allow_timeout_override = True
    batching.priority_queue_policy[1].timeout_action = pb.ModelQueuePolicy.DELAY
    batching.priority_queue_policy[1].max_queue_size = 13

    assert dynamic_batching(config) == DynamicBatching(
        max_batch_size=8,
        preferred_batch_sizes=(2, 4),
        max_queue_delay_us=7,
        priority_levels=3,
        default_priority_level=2,
        default_policy=QueuePolicy(default_timeout_us=11, allow_timeout_override=True),
        policies={1: QueuePolicy(delay_on_timeout=True, max_queue_size=13)},
    )


def test_other_ways_of_scheduling_are_refused_with_a_way_out() -> None:
    config = pb.ModelConfig(name="m")
    config.ensemble_scheduling.SetInParent()
    with pytest.raises(Unsupported, match=r"model 'm' asks for 'ensemble_scheduling'.*remove it"):
        scheduler_for(config, 1)
