"""Repository agents: the checks in `model_repository_agents` before a model is loaded.

`checksum` compares files with the digests in the configuration. Parameters and texts are those of Triton's agent
(triton-inference-server/checksum_repository_agent src/checksum.cc): `MD5:<path in the model directory>` -> hexadecimal.
Unlike there, a path that leads out of that directory is refused.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from edge_serve.config.model.model_config_pb2 import ModelConfig
from edge_serve.errors import InvalidArgument, Unsupported
from edge_serve.files import find_within

_PIECE = 1 << 20


def run_agents(config: ModelConfig, directory: Path) -> None:
    """Run the agents of the model in `directory`. Reads whole files.

    Raises:
        InvalidArgument, Unsupported: an agent refuses the model, or is unknown.
    """
    for agent in config.model_repository_agents.agents:
        if agent.name != "checksum":
            raise InvalidArgument(
                f"unable to find repository agent '{agent.name}': the built-in agent 'checksum' is the only one here"
            )
        for key, expected in agent.parameters.items():
            _compare(directory, key, expected)


def _compare(directory: Path, key: str, expected: str) -> None:
    algorithm, colon, path = key.partition(":")
    if not colon:
        raise InvalidArgument(f"failed to parse key: {key}")
    if algorithm.lower() != "md5":
        raise Unsupported(f"Unsupported checksum algorithm: {algorithm}")
    place = find_within(directory, path)
    if place is None:  # the configuration may come from a client, and the error, with the digest, goes to it
        text = "it is outside the directory of the model: put it there"
        raise InvalidArgument(f"failed to open text file for read {path}: {text}")
    digest = hashlib.md5(usedforsecurity=False)
    try:
        if place.exists() and not place.is_file():  # opening a pipe waits for its writer
            raise InvalidArgument(f"failed to open text file for read {path}: not a file")
        with open(place, "rb") as file:
            while piece := file.read(_PIECE):
                digest.update(piece)
    except OSError as error:
        raise InvalidArgument(f"failed to open text file for read {path}: {error.strerror}") from error
    except ValueError as error:
        raise InvalidArgument(f"failed to open text file for read {path!r}: no file has such a name") from error
    if digest.hexdigest() != expected:
        raise InvalidArgument(f"Mismatched MD5 hash for file {path}, expect: {expected}, got: {digest.hexdigest()}")
