"""From the scores of a forest to the tensor `output__0`. Pure, without the library.

As in Triton (fil_backend src/tl_model.h), except that the class with the greatest score wins where all are negative.
"""

from __future__ import annotations

import numpy as np

from edge_serve.messages.tensors import Array

from .settings import ForestSettings


def answers(scores: Array, is_classifier: bool, settings: ForestSettings, width: int) -> Array:
    """Return what `output__0` holds: [row, value].

    Args:
        scores: [row, target, class].
        width: values of a row that the configuration asks for; 2 for the scores of a binary classifier, which the
            library computes for class 1 only.
    """
    rows, targets, classes = scores.shape
    if not is_classifier:
        return scores.reshape(rows, targets * classes)
    scores = scores.reshape(rows, classes)
    if settings.predict_proba:
        return np.concatenate([1 - scores, scores], axis=1) if classes == 1 and width == 2 else scores
    chosen = scores > settings.threshold if classes == 1 else scores.argmax(axis=1)[:, np.newaxis]
    return chosen.astype(scores.dtype)
