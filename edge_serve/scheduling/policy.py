"""Picks the scheduler that a model's configuration asks for."""

from __future__ import annotations

from collections.abc import Collection

from edge_serve.config.model import model_config_pb2 as pb
from edge_serve.config.model.normalise import is_python
from edge_serve.errors import Unsupported
from edge_serve.scheduling.core import DynamicBatching, QueuePolicy, Scheduler, SequenceBatching
from edge_serve.scheduling.direct import DirectScheduler
from edge_serve.scheduling.dynamic import DynamicScheduler
from edge_serve.scheduling.sequence.direct import DirectSequences
from edge_serve.scheduling.sequence.oldest import OldestSequences
from edge_serve.scheduling.start_delay import NO_DELAY, DelayedDirect, DelayedDynamic, DelayedOldest, StartDelay


def scheduler_for(
    config: pb.ModelConfig, instances: int, passive: Collection[int] = (), delay: StartDelay = NO_DELAY
) -> Scheduler:
    """Create the scheduler of a completed configuration for `instances` instances, of which the `passive` ones get no
    work.

    Raises:
        Unsupported: the configuration asks for a way of scheduling that is not offered.
    """
    match config.WhichOneof("scheduling_choice"):
        case "dynamic_batching":
            batching = dynamic_batching(config)
            if delay.requests:
                return DelayedDynamic(batching, instances, passive, requests=delay.requests)
            return DynamicScheduler(batching, instances, passive)
        case "sequence_batching":
            return _sequence_scheduler(sequence_batching(config), instances, passive, delay)
        case None:
            # Python models may call others (`pb_utils.InferenceRequest`)
            return DirectScheduler(instances, passive, calls=is_python(config))
        case choice:
            raise Unsupported(
                f"model '{config.name}' asks for '{choice}', which this server does not offer; remove it from its"
                " configuration to have each request run alone, or use 'dynamic_batching'"
            )


def _sequence_scheduler(
    batching: SequenceBatching, instances: int, passive: Collection[int], delay: StartDelay
) -> Scheduler:
    if not delay.requests:
        strategy = OldestSequences if batching.oldest else DirectSequences
        return strategy(batching, instances, passive)
    if batching.oldest:
        return DelayedOldest(batching, instances, passive, requests=delay.requests)
    return DelayedDirect(batching, instances, passive, delay=delay)


def dynamic_batching(config: pb.ModelConfig) -> DynamicBatching:
    """Convert `dynamic_batching` and `max_batch_size` to a plain value."""
    batching = config.dynamic_batching
    return DynamicBatching(
        max_batch_size=max(1, config.max_batch_size),
        preferred_batch_sizes=tuple(batching.preferred_batch_size),
        max_queue_delay_us=batching.max_queue_delay_microseconds,
        priority_levels=batching.priority_levels,
        default_priority_level=batching.default_priority_level,
        default_policy=_queue_policy(batching.default_queue_policy),
        policies={level: _queue_policy(policy) for level, policy in batching.priority_queue_policy.items()},
        eager=config.optimization.eager_batching,
    )


def sequence_batching(config: pb.ModelConfig) -> SequenceBatching:
    """Convert `sequence_batching` and `max_batch_size` to a plain value."""
    batching = config.sequence_batching
    oldest, direct = batching.oldest, batching.direct
    is_oldest = batching.HasField("oldest")
    delays = (oldest if is_oldest else direct).max_queue_delay_microseconds
    return SequenceBatching(
        max_batch_size=max(1, config.max_batch_size),
        max_sequence_idle_us=batching.max_sequence_idle_microseconds,
        oldest=is_oldest,
        max_candidate_sequences=oldest.max_candidate_sequences,
        preferred_batch_sizes=tuple(oldest.preferred_batch_size),
        max_queue_delay_us=delays,
        minimum_slot_utilization=direct.minimum_slot_utilization,
        iterative=batching.iterative_sequence,
    )


def _queue_policy(policy: pb.ModelQueuePolicy) -> QueuePolicy:
    return QueuePolicy(
        delay_on_timeout=policy.timeout_action == pb.ModelQueuePolicy.DELAY,
        default_timeout_us=policy.default_timeout_microseconds,
        allow_timeout_override=policy.allow_timeout_override,
        max_queue_size=policy.max_queue_size,
    )
