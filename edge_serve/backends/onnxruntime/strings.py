"""BYTES for ONNX Runtime: it takes `str`, and arrays of fixed width for bytes that are no text."""

from __future__ import annotations

import numpy as np

from edge_serve.messages.tensors import Array


def text_array(array: Array) -> Array:
    """The elements (bytes) as `str`; where one is not UTF-8, all as an array of fixed width.

    ONNX's strings end at a zero byte, as they do in Triton.
    """
    elements = array.ravel().tolist()
    try:
        text = np.empty(len(elements), dtype=object)
        text[:] = [element.decode() for element in elements]
    except UnicodeDecodeError:
        text = np.array(elements, dtype=np.bytes_)
    return text.reshape(array.shape)
