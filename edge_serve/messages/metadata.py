"""Metadata and repository index records."""

from __future__ import annotations

from edge_serve.messages.tensors import Shape
from edge_serve.records import frozen


@frozen
class ServerMetadata:
    """GET /v2"""

    name: str
    version: str
    extensions: tuple[str, ...]


@frozen
class TensorMetadata:
    """Shape has -1 in front when the model batches."""

    name: str
    datatype: str
    shape: Shape


@frozen
class ModelMetadata:
    """GET /v2/models/{m}"""

    name: str
    versions: tuple[str, ...]
    platform: str
    inputs: tuple[TensorMetadata, ...]
    outputs: tuple[TensorMetadata, ...]


@frozen
class IndexEntry:
    """One line of the repository index; a model that was never loaded has only a name.

    Attributes:
        state: UNKNOWN, READY, UNAVAILABLE, LOADING, UNLOADING; "" = not printed.
        dismissed: it failed to load, and that no longer counts; not printed.
        namespace: the path of its repository, with `--model-namespacing`; not printed.
    """

    name: str
    version: str = ""
    state: str = ""
    reason: str = ""
    dismissed: bool = False
    namespace: str = ""
