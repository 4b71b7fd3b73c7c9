"""Advice on a model configuration that is valid, but hardly what its author wanted."""

from __future__ import annotations

from edge_serve.config.model import model_config_pb2 as pb


def notes_on(config: pb.ModelConfig) -> list[str]:
    """Return what to change in the completed configuration of a model that loads."""
    notes = []
    if config.backend == "python" and not config.input and not config.output:
        notes.append(
            "its configuration has no inputs and no outputs, so that no request fits: write input { } and output { } "
            "into config.pbtxt, or give model.py an auto_complete_config"
        )
    if config.HasField("dynamic_batching") and not config.max_batch_size:
        batching = config.dynamic_batching
        if not batching.priority_levels and not batching.HasField("default_queue_policy"):
            notes.append(
                "dynamic_batching joins no requests while max_batch_size is 0: write max_batch_size: 8, and leave the "
                "first dimension out of dims"
            )
    return notes
