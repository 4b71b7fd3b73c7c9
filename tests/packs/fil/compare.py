"""Times four predictors of the same forests: `python compare.py DIRECTORY`, for docs/adr/0035-trees.md.

Runs in the environment of `libraries.py` with onnxruntime, onnxmltools, and skl2onnx added. Prints CPU microseconds
of one thread for a call with 1, 64, and 10,000 rows, so that other work on the machine matters little.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).parents[3]))

import lightgbm
import numpy as np
import onnxruntime
import sklearn.ensemble as forests
import treelite
import xgboost
from onnxmltools import convert_lightgbm, convert_xgboost
from onnxmltools.convert.common.data_types import FloatTensorType
from skl2onnx import to_onnx

from packs.fil.forest import load_forest
from packs.fil.formats import CHECKPOINT, LIGHTGBM, XGBOOST_JSON, Format
from packs.fil.library import load_treelite

Array = Any
FEATURES, SIZES = 30, (1, 64, 10_000)
#: name -> trees, depth
FORESTS = {"small": (50, 4), "medium": (300, 6), "large": (1000, 8)}
RNG = np.random.default_rng(0)


def table(rows: int) -> Array:
    """Return rows of features of which one in twenty is missing."""
    x = RNG.normal(size=(rows, FEATURES)).astype(np.float32)
    x[RNG.random(x.shape) < 0.05] = np.nan
    return x


def best(call: Callable[[], object], seconds: float = 0.2) -> float:
    """Return the CPU microseconds of the cheapest of several calls."""
    count, times = 1, []
    while (spent := _spent(call, count)) < seconds / 10 and count < 5000:
        count *= 3
    for _ in range(max(2, int(seconds / spent))):
        times.append(_spent(call, count) / count)
    return min(times) * 1e6


def _spent(call: Callable[[], object], count: int) -> float:
    start = time.process_time()
    for _ in range(count):
        call()
    return time.process_time() - start


def report(model: str, x: Array, predictors: dict[str, Callable[[Array], Array]]) -> None:
    """Print the times of the predictors, and how far each is from the last one, the library that trained the model."""
    *_, library = predictors.values()
    expected = library(x)
    for name, predict in predictors.items():
        parts = [np.ascontiguousarray(x[:count]) for count in SIZES]
        times = " ".join(f"{best(partial(predict, part)):12.1f}" for part in parts)
        print(f"{model:14} {name:14} {times}  {np.abs(predict(x) - expected).max():.1e}", flush=True)


def ours(path: Path, form: Format) -> Callable[[Array], Array]:
    """Return the predictor of the pack."""
    forest = load_forest(load_treelite(), path, form, False)
    dtype = forest.facts.dtype
    return lambda x: forest.predict(np.require(x, dtype, ["C", "A"]), 1)[:, 0, 0]


def treelite_gtil(model: Any) -> Callable[[Array], Array]:
    """Return the predictor of Treelite's module."""
    return lambda x: treelite.gtil.predict(model, x, nthread=1)[:, 0, 0]


def lightgbm_predict(model: Any) -> Callable[[Array], Array]:
    """Return LightGBM's predictor with one thread."""
    return lambda x: model.predict(x, num_threads=1)


def onnx_scores(model: Any) -> Callable[[Array], Array]:
    """Return ONNX Runtime's scores of class 1."""
    made = session(model)
    return lambda x: made.run(None, {"X": x})[1][:, 1]


def session(model: Any) -> onnxruntime.InferenceSession:
    """Return a session of ONNX Runtime with one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def main(root: Path) -> None:
    """Train, save, and time."""
    warnings.filterwarnings("ignore")
    x, asked = table(5000), table(10_000)
    y = np.nan_to_num(x[:, 0]) * np.nan_to_num(x[:, 1]) + np.nan_to_num(x[:, 2]) + RNG.normal(size=5000) * 0.3
    kind = [("X", FloatTensorType([None, FEATURES]))]
    for size, (trees, depth) in FORESTS.items():
        given: dict[str, Any] = {"objective": "binary:logistic", "max_depth": depth, "eta": 0.05, "nthread": 1}
        booster = xgboost.train(given, xgboost.DMatrix(x, y > 0), trees)
        booster.save_model(path := root / f"{size}.json")
        loaded = treelite.frontend.load_xgboost_model(str(path), format_choice="json")
        converted = convert_xgboost(booster, initial_types=kind)
        report(f"xgboost {size}", asked, {
            "pack fil": ours(path, XGBOOST_JSON),
            "treelite.gtil": treelite_gtil(loaded),
            "ONNX Runtime": onnx_scores(converted),
            "xgboost": booster.inplace_predict,
        })  # fmt: skip
        given = {"objective": "binary", "num_leaves": 2**depth - 1, "max_depth": depth, "learning_rate": 0.05}
        given |= {"verbosity": -1, "num_threads": 1, "min_data_in_leaf": 5}
        model = lightgbm.train(given, lightgbm.Dataset(x, y > 0), trees)
        model.save_model(path := root / f"{size}.txt")
        converted = convert_lightgbm(model, initial_types=kind, zipmap=False)
        report(f"lightgbm {size}", asked, {
            "pack fil": ours(path, LIGHTGBM),
            "ONNX Runtime": onnx_scores(converted),
            "lightgbm": lightgbm_predict(model),
        })  # fmt: skip
    x, asked = np.nan_to_num(x), np.nan_to_num(asked)
    forest = forests.RandomForestRegressor(100, max_depth=10, random_state=0).fit(x, y)
    treelite.sklearn.import_model(forest).serialize(path := root / "checkpoint.tl")
    run = session(to_onnx(forest, x[:1])).run
    report("random forest", asked, {
        "pack fil": ours(path, CHECKPOINT),
        "ONNX Runtime": lambda x: run(None, {"X": x})[0][:, 0],
        "scikit-learn": forest.predict,
    })  # fmt: skip


if __name__ == "__main__":
    main(Path(sys.argv[1]))
