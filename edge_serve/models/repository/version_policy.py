"""Which versions are served (ModelVersionPolicy of model_config.proto)."""

from __future__ import annotations

from collections.abc import Sequence

from edge_serve.config.model.model_config_pb2 import ModelVersionPolicy


def choose(policy: ModelVersionPolicy, available: Sequence[int]) -> list[int]:
    """Return the versions to serve, ascending; a specific version that does not exist is left out."""
    match policy.WhichOneof("policy_choice"):
        case "all" | None:  # without `version_policy`, a configuration was completed with `latest`
            return sorted(available)
        case "specific":
            return sorted(set(policy.specific.versions) & set(available))
        case _:
            return sorted(available)[max(0, len(available) - policy.latest.num_versions) :]
