"""Trains the models of the tests with the real libraries, and writes what each library itself predicts.

Runs in the environment with these libraries (`libraries.py`), never in that of the tests:
`python train.py DIRECTORY`. A case is a directory with the model's file, `inputs.npy`, `expected.npy`, and `case.json`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import sklearn.ensemble as forests
import treelite
import xgboost

ROWS, FEATURES, CATEGORIES = 10_000, 12, 20
#: rows whose Shapley values are compared
EXPLAINED = 40
#: features with categories
CATEGORICAL = [3, 7]
RNG = np.random.default_rng(7)
Array = Any


def table(rows: int, missing: float = 0.0, categorical: bool = False, unseen: bool = False) -> Array:
    """Return rows of features, as float32."""
    x = RNG.normal(size=(rows, FEATURES)).astype(np.float32)
    if categorical:
        x[:, CATEGORICAL] = RNG.integers(0, CATEGORIES, (rows, len(CATEGORICAL)))
    if missing:
        x[RNG.random(x.shape) < missing] = np.nan
    if unseen:  # greater than all, far greater, and negative
        for column in CATEGORICAL:
            x[: rows // 4, column] = RNG.choice([CATEGORIES, CATEGORIES + 13, 5000, -1], rows // 4)
    return x


def target(x: Array) -> Array:
    """Return a value that depends on several features, categories too."""
    filled = np.nan_to_num(x)
    return (filled[:, 0] * filled[:, 1] + filled[:, 2] + (filled[:, 3].astype(int) % 3 == 1)).astype(np.float32)


def classes(x: Array, count: int) -> Array:
    """Return a class for each row."""
    y = target(x)
    return np.digitize(y, np.quantile(y, np.linspace(0, 1, count + 1)[1:-1]))


class Cases:
    """Writes cases below a directory."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def add(self, name: str, file: str, save: Any, inputs: Array, expected: Array, **parameters: str) -> None:
        """Write one."""
        directory = self.root / name
        directory.mkdir(parents=True)
        save(str(directory / file))
        np.save(directory / "inputs.npy", inputs)
        np.save(directory / "expected.npy", np.asarray(expected, np.float64))
        (directory / "case.json").write_text(json.dumps({"file": file, "parameters": parameters}))

    def explained(self, name: str, values: Array) -> None:
        """Add what the library says about each feature of the first rows."""
        np.save(self.root / name / "shap.npy", values)

    def tree(self, name: str, model: Any, inputs: Array, expected: Array, **parameters: str) -> None:
        """Write a forest of scikit-learn."""
        save = treelite.sklearn.import_model(model).serialize
        self.add(name, "checkpoint.tl", save, inputs, expected, **parameters)


def of_xgboost(cases: Cases) -> None:
    x, test = table(4000, 0.1), table(ROWS, 0.1)
    common = {"max_depth": 6, "nthread": 1}

    def trained(objective: str, y: Array, rounds: int = 60, **more: Any) -> Any:
        return xgboost.train({**common, "objective": objective, **more}, xgboost.DMatrix(x, y), rounds)

    binary = trained("binary:logistic", classes(x, 2))
    p = binary.predict(xgboost.DMatrix(test))
    for name, file in (("xgboost_binary", "xgboost.json"), ("xgboost_ubj", "xgboost.ubj")):
        both = np.stack([1 - p, p], axis=1)
        cases.add(name, file, binary.save_model, test, both, predict_proba="true")
    cases.add("xgboost_class", "xgboost.json", binary.save_model, test, p > 0.5, is_classifier="true")
    cases.add(
        "xgboost_threshold", "xgboost.json", binary.save_model, test, p > 0.8, is_classifier="true", threshold="0.8"
    )
    several = trained("multi:softprob", classes(x, 4), num_class=4)
    scores = several.predict(xgboost.DMatrix(test))
    cases.add("xgboost_classes", "xgboost.json", several.save_model, test, scores, predict_proba="true")
    cases.add("xgboost_argmax", "xgboost.ubj", several.save_model, test, scores.argmax(1))
    regression = trained("reg:squarederror", target(x), 200)
    cases.add(
        "xgboost_regression", "xgboost.json", regression.save_model, test, regression.predict(xgboost.DMatrix(test))
    )
    dart = trained("reg:squarederror", target(x), booster="dart", rate_drop=0.2)
    cases.add("xgboost_dart", "xgboost.json", dart.save_model, test, dart.predict(xgboost.DMatrix(test)))
    counts = trained("count:poisson", np.maximum(0, np.round(target(x))), base_score=0.7)
    cases.add("xgboost_poisson", "xgboost.json", counts.save_model, test, counts.predict(xgboost.DMatrix(test)))
    forest = trained("reg:squarederror", target(x), 1, num_parallel_tree=40, subsample=0.7, colsample_bynode=0.6, eta=1)
    cases.add("xgboost_forest", "xgboost.json", forest.save_model, test, forest.predict(xgboost.DMatrix(test)))
    both = np.stack([target(x), -(target(x) ** 2)], axis=1)
    for name, model in (("xgboost_binary", binary), ("xgboost_classes", several), ("xgboost_regression", regression)):
        cases.explained(name, model.predict(xgboost.DMatrix(test[:EXPLAINED]), pred_contribs=True))
    targets = trained("reg:squarederror", both)
    cases.add("xgboost_targets", "xgboost.json", targets.save_model, test, targets.predict(xgboost.DMatrix(test)))
    x, test = table(4000, 0.1, categorical=True), table(ROWS, 0.1, categorical=True, unseen=True)
    kinds = ["c" if column in CATEGORICAL else "q" for column in range(FEATURES)]
    for name, onehot in (("xgboost_partitions", 1), ("xgboost_onehot", 100)):
        data = xgboost.DMatrix(x, target(x), feature_types=kinds, enable_categorical=True)
        more = {"objective": "reg:squarederror", "max_cat_to_onehot": onehot, "tree_method": "hist"}
        model = xgboost.train({**common, **more}, data, 60)
        asked = xgboost.DMatrix(test, feature_types=kinds, enable_categorical=True)
        cases.add(name, "xgboost.json", model.save_model, test, model.predict(asked))
        few = xgboost.DMatrix(test[:EXPLAINED], feature_types=kinds, enable_categorical=True)
        cases.explained(name, model.predict(few, pred_contribs=True))


def of_lightgbm(cases: Cases) -> None:
    x, test = table(4000, 0.1), table(ROWS, 0.1)
    common = {"num_leaves": 31, "verbosity": -1, "num_threads": 1}

    def trained(
        objective: str, y: Array, x: Array = x, rounds: int = 60, cats: list[int] | str = "auto", **more: Any
    ) -> Any:
        data = lightgbm.Dataset(x, y, categorical_feature=cats)
        return lightgbm.train({**common, "objective": objective, **more}, data, rounds)

    binary = trained("binary", classes(x, 2))
    p = binary.predict(test)
    cases.add(
        "lightgbm_binary", "model.txt", binary.save_model, test, np.stack([1 - p, p], axis=1), predict_proba="true"
    )
    for objective in ("multiclass", "multiclassova"):
        several = trained(objective, classes(x, 3), num_class=3)
        scores = several.predict(test)
        cases.add(f"lightgbm_{objective}", "model.txt", several.save_model, test, scores, predict_proba="true")
    regression = trained("regression", target(x), rounds=300)
    cases.add("lightgbm_regression", "model.txt", regression.save_model, test, regression.predict(test))
    cases.explained("lightgbm_regression", regression.predict(test[:EXPLAINED], pred_contrib=True))
    poisson = trained("poisson", np.maximum(0, np.round(target(x))))
    cases.add("lightgbm_poisson", "model.txt", poisson.save_model, test, poisson.predict(test))
    forest = trained("regression", target(x), boosting="rf", bagging_freq=1, bagging_fraction=0.7)
    cases.add("lightgbm_forest", "model.txt", forest.save_model, test, forest.predict(test))
    without = trained("regression", target(x), x=np.nan_to_num(x))
    cases.add("lightgbm_never_missing", "model.txt", without.save_model, test, without.predict(test))
    zeros, zero_test = x.copy(), test.copy()
    zeros[RNG.random(x.shape) < 0.2] = 0
    zero_test[RNG.random(test.shape) < 0.2] = 0
    zero = trained("regression", target(x), x=zeros, zero_as_missing=True)
    cases.add("lightgbm_zero_as_missing", "model.txt", zero.save_model, zero_test, zero.predict(zero_test))
    x, test = table(4000, 0.1, categorical=True), table(ROWS, 0.1, categorical=True, unseen=True)
    x[:, CATEGORICAL] = np.nan_to_num(x[:, CATEGORICAL])
    categorical = trained("regression", target(x), x=x, cats=CATEGORICAL)
    cases.add("lightgbm_categorical", "model.txt", categorical.save_model, test, categorical.predict(test))
    cases.explained("lightgbm_categorical", categorical.predict(test[:EXPLAINED], pred_contrib=True))


def of_sklearn(cases: Cases) -> None:
    x, test = table(2000), table(ROWS)
    gaps, gap_test = table(2000, 0.1), table(ROWS, 0.1)
    small = {"n_estimators": 30, "random_state": 0, "n_jobs": 1}
    for name, kind, of_classes in (
        ("forest", forests.RandomForestRegressor, forests.RandomForestClassifier),
        ("extra", forests.ExtraTreesRegressor, forests.ExtraTreesClassifier),
    ):
        model = kind(**small).fit(x, target(x))
        cases.tree(f"{name}_regressor", model, test, model.predict(test))
        model = kind(**small).fit(gaps, target(gaps))
        cases.tree(f"{name}_missing", model, gap_test, model.predict(gap_test))
        for count in (2, 3):
            model = of_classes(**small).fit(x, classes(x, count))
            cases.tree(f"{name}_classes{count}", model, test, model.predict_proba(test), predict_proba="true")
    model = forests.RandomForestClassifier(**small).fit(x, classes(x, 3))
    cases.tree("forest_class", model, test, model.predict(test))
    model = forests.IsolationForest(n_estimators=30, random_state=0).fit(x)
    cases.tree("isolation", model, test, -model.score_samples(test))
    model = forests.GradientBoostingRegressor(n_estimators=30, random_state=0).fit(x, target(x))
    cases.tree("boosting_regressor", model, test, model.predict(test))
    model = forests.GradientBoostingClassifier(n_estimators=30, random_state=0).fit(x, classes(x, 3))
    cases.tree("boosting_classes", model, test, model.predict_proba(test), predict_proba="true")
    model = forests.HistGradientBoostingRegressor(max_iter=30, random_state=0).fit(gaps, target(gaps))
    cases.tree("hist_missing", model, gap_test, model.predict(gap_test))
    # without unseen categories, which scikit-learn takes for missing and Treelite does not (docs/trees.md)
    x, test = table(4000, 0.1, categorical=True), table(ROWS, 0.1, categorical=True)
    model = forests.HistGradientBoostingClassifier(max_iter=30, random_state=0, categorical_features=CATEGORICAL)
    model.fit(x, classes(x, 2))
    p = model.predict_proba(test)
    cases.tree("hist_categorical", model, test, p, predict_proba="true")


def main(root: Path) -> None:
    """Write all cases."""
    cases = Cases(root)
    of_xgboost(cases)
    of_lightgbm(cases)
    of_sklearn(cases)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
