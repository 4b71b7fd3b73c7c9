"""The backend `fil`: forests of decision trees of XGBoost, LightGBM, scikit-learn, and cuML, computed by Treelite.

Start in `instance` for what happens to a batch, in `settings` for what the configuration can say. docs/trees.md is the
user's page.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from edge_serve.backends import host
from edge_serve.backends.base import InstanceSpec, ModelSpec
from edge_serve.errors import InvalidArgument

from .checkpoint import check_checkpoint
from .forest import Forest, load_forest
from .formats import CHECKPOINT, check_format, find_file
from .instance import FilInstance
from .library import load_treelite
from .settings import ForestSettings, read_settings
from .shap import Explainer
from .signature import DEFAULT_MAX_BATCH_SIZE, SHAP, complete, make_plan


class FilBackend:
    """One version of a forest, which its instances share.

    Raises:
        Unavailable: the library is not installed, or does not load.
    """

    def __init__(self) -> None:
        self._library = load_treelite()
        self._forest: Forest | None = None
        self._explainer: Explainer | None = None
        self._instances: list[FilInstance] = []

    def complete_config(self, spec: ModelSpec) -> dict[str, Any]:
        """Return the configuration with the tensors of the forest, where it leaves them out.

        Raises:
            InvalidArgument, Internal, Unavailable, Unsupported: the file does not load.
        """
        if spec.config.get("input") and spec.config.get("output"):
            return spec.config
        settings = read_settings(spec.config)
        return complete(spec.config, self._load(spec, settings).facts, settings, _default_max_batch_size(spec))

    def open(self, spec: ModelSpec, instances: Sequence[InstanceSpec]) -> list[FilInstance]:
        """Load the forest.

        Raises:
            InvalidArgument, Internal, Unavailable, Unsupported: the file does not load, or contradicts the
                configuration.
        """
        settings = read_settings(spec.config)
        for note in settings.notes:
            host.log("WARNING", f"model '{spec.name}': {note}")
        if any(one.kind == "GPU" for one in instances):
            host.log("WARNING", f"model '{spec.name}': backend 'fil' computes on the CPU, also for KIND_GPU")
        forest = self._load(spec, settings)
        if forest.note:
            host.log("WARNING", f"model '{spec.name}': {forest.note}")
        plan = make_plan(spec.config, forest.facts, settings)
        if self._explainer is None and SHAP in (output.name for output in plan.outputs):
            self._explainer = Explainer(forest)
        opened = [FilInstance(forest, plan, settings, self._explainer) for _ in instances]
        self._instances = [one for one in self._instances if one.is_open] + opened
        share = max(1, len(os.sched_getaffinity(0)) // max(1, len(self._instances)))
        most = self._library.most_threads
        if settings.threads > most:
            text = f"cpu_nthread is {settings.threads}, and OpenMP has {most} (processors, or OMP_NUM_THREADS)"
            host.log("WARNING", f"model '{spec.name}': {text}: {most} compute")
        for one in self._instances:
            one.threads = min(settings.threads or share, most)
        return opened

    def close(self) -> None:
        """Release the forest."""
        if self._forest is not None:
            self._forest.close()
            self._forest = None

    def _load(self, spec: ModelSpec, settings: ForestSettings) -> Forest:
        if self._forest is None:
            path, form = find_file(spec.version_directory, spec.config, settings.model_type)
            check_format(path, form)
            if form is CHECKPOINT:
                check_checkpoint(path)
            self._forest = load_forest(self._library, path, form, settings.allow_unknown_field)
        return self._forest


def _default_max_batch_size(spec: ModelSpec) -> int:
    text = spec.backend_config.get("default-max-batch-size")
    if text is None:
        return DEFAULT_MAX_BATCH_SIZE
    try:
        return int(text)
    except ValueError as error:
        raise InvalidArgument(f"failed to convert '{text}' to integral number") from error


#: the name that the loader looks for
Backend = FilBackend
