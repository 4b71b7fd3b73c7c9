"""Checks of `dynamic_batching`.

It may stand beside `max_batch_size: 0`: then it only gives the model a queue with priorities and a queue policy.
"""

from __future__ import annotations

from collections.abc import Iterable

from edge_serve.config.model import model_config_pb2 as pb
from edge_serve.errors import InvalidArgument


def check_dynamic_batching(batching: pb.ModelDynamicBatching, name: str, max_batch_size: int) -> None:
    """Sizes, priorities and queue policies agree with each other.

    Raises:
        InvalidArgument: with Triton's text.
    """
    for size in batching.preferred_batch_size:
        if size <= 0:
            raise InvalidArgument(f"dynamic batching preferred size must be positive for {name}")
        if size > max_batch_size:
            raise InvalidArgument(f"dynamic batching preferred size must be <= max batch size for {name}")
    if batching.priority_levels:
        _check_priorities(batching, name)
    if batching.preserve_ordering:
        _check_ordering(batching, name)


def _check_priorities(batching: pb.ModelDynamicBatching, name: str) -> None:
    levels = batching.priority_levels
    if not 1 <= batching.default_priority_level <= levels:
        raise InvalidArgument(f"default priority level must be in range [1, {levels}] for {name}")
    for level in batching.priority_queue_policy:
        if not 1 <= level <= levels:
            text = f"priority queue policy must have priority level in range [1, {levels}] for {name}"
            raise InvalidArgument(text)


def _check_ordering(batching: pb.ModelDynamicBatching, name: str) -> None:
    if batching.priority_levels > 1:
        text = f"Only one priority level is allowed when 'preserve_ordering' is true for {name}"
        raise InvalidArgument(text)
    policies: Iterable[pb.ModelQueuePolicy] = batching.priority_queue_policy.values()
    for policy in [batching.default_queue_policy, *policies]:
        if policy.default_timeout_microseconds and policy.timeout_action == pb.ModelQueuePolicy.DELAY:
            raise InvalidArgument(
                f"Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for {name}"
            )
