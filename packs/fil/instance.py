"""One instance: joins a batch, asks the forest, and hands out views of the answers."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from edge_serve.backends.base import BackendRequest, Reply, Timing
from edge_serve.errors import EdgeServeError, Internal, InvalidArgument
from edge_serve.messages.tensors import Array, InferTensor, from_array, join

from .forest import Forest
from .library import TreeliteError
from .scores import answers
from .settings import ForestSettings
from .shap import Explainer
from .signature import SHAP, Plan

#: rows times trees that are worth a second thread (docs/adr/0035-trees.md)
WORTH_A_THREAD = 20_000


class FilInstance:
    """One executor. Instances of a model share its forest.

    Attributes:
        threads: at most so many compute one batch.
    """

    def __init__(
        self, forest: Forest, plan: Plan, settings: ForestSettings, explainer: Explainer | None = None
    ) -> None:
        self._forest = forest
        self._explainer = explainer
        self._plan = plan
        self._settings = settings
        self.threads = 1
        self.is_open = True

    def execute(self, batch: Sequence[BackendRequest], timing: Timing) -> list[Reply]:
        """Return one reply for each request; those with a wrong shape get an error."""
        read = [self._rows(request.inputs[0]) for request in batch]
        parts = [part for part in read if not isinstance(part, EdgeServeError)]
        if not parts:
            return [Reply(error=part) for part in read if isinstance(part, EdgeServeError)]
        rows = np.require(parts[0] if len(parts) == 1 else join(parts), self._forest.facts.dtype, ["C", "A"])
        timing.input_end_ns = time.monotonic_ns()
        wanted = {name for request in batch for name in request.requested_outputs}
        values = self._values(rows, wanted)
        timing.output_start_ns = time.monotonic_ns()
        replies, start = [], 0
        for request, part in zip(batch, read, strict=True):
            if isinstance(part, EdgeServeError):
                replies.append(Reply(error=part))
                continue
            replies.append(Reply(self._tensors(request, values, start, len(part))))
            start += len(part)
        return replies

    def is_ready(self) -> bool:
        """Return True: a loaded forest always is."""
        return True

    def close(self) -> None:
        """Do nothing: the backend closes the forest."""
        self.is_open = False

    def _rows(self, tensor: InferTensor) -> Array | EdgeServeError:
        """Return the rows of a request: [row, feature]."""
        shape, features = tensor.shape, self._forest.facts.features
        size = int(np.prod(shape, dtype=np.int64))
        count = shape[0] if self._plan.batches or len(shape) > 1 else 1
        if size != count * features:
            found = list(shape[1:] if self._plan.batches else shape)
            return InvalidArgument(
                f"input '{tensor.name}' has the shape {found}, expected {features} features in a row"
            )
        return tensor.array().reshape(count, features)

    def _values(self, rows: Array, wanted: set[str]) -> dict[str, Array]:
        work = len(rows) * self._forest.facts.trees
        threads = min(self.threads, 1 + work // WORTH_A_THREAD)
        values: dict[str, Array] = {}
        for output in self._plan.outputs:
            if output.name in wanted:
                width = output.width
                found = self._explained(rows, width) if output.name == SHAP else self._answers(rows, threads, width)
                values[output.name] = found.astype(output.datatype.numpy, copy=False)
        return values

    def _answers(self, rows: Array, threads: int, width: int) -> Array:
        try:
            scores = self._forest.predict(rows, threads)
        except TreeliteError as error:
            raise Internal(f"the forest cannot be computed: {error}") from error
        return answers(scores, self._plan.is_classifier, self._settings, width)

    def _explained(self, rows: Array, width: int) -> Array:
        assert self._explainer is not None, "the plan has this output"
        return self._explainer.explain(self._forest.as_asked(rows)).reshape(len(rows), width)

    def _tensors(self, request: BackendRequest, values: dict[str, Array], start: int, count: int) -> list[InferTensor]:
        tensors = []
        for output in self._plan.outputs:
            if output.name in request.requested_outputs:
                shape = output.shape
                if self._plan.batches or len(request.inputs[0].shape) > 1:
                    shape = (count, *shape)
                part = values[output.name][start : start + count].reshape(shape or (1,))
                tensors.append(InferTensor(output.name, output.datatype, part.shape, from_array(part, output.datatype)))
        return tensors
