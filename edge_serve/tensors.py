"""The tensor type and its helpers under the names that backends import (docs/writing_a_backend.md).

They are defined in `messages.tensors`. The server itself imports them from there.
"""

from __future__ import annotations

from edge_serve.messages.tensors import DataType, from_array, from_numpy_type, join, split, to_array
from edge_serve.messages.tensors import InferTensor as Tensor

__all__ = ["DataType", "Tensor", "from_array", "from_numpy_type", "join", "split", "to_array"]
