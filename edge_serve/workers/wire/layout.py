"""How a model's tensors are numbered and laid out in frames: what `front/frames/batch` and `child/batch` share.

    EXECUTE  header | EXECUTE_HEAD | per request: REQUEST, id, extra JSON, block | data
    REPLY    header | REPLY_HEAD   | per reply:   ANSWER, extra,           block | data

A block describes the tensors of one request or reply: a TENSOR struct each. Requests of one model look alike, so read
blocks are remembered, and reading one again is a look-up.

Tensors are named by their index in the configuration. A tensor lies in the arena or in the frame's data part. In the
arena, the place of an input counts from the start of the arena, that of an output from the start of the reply's slot.
In the data part, each tensor starts on 16 bytes, and its place counts from where the data of its request starts. An
input of zeros is in no memory: the worker makes it. What is rare (parameters, string correlation ids, names that the
configuration lacks) goes into the extra JSON. Those two files are the hot path: locals and few objects rather than
small functions.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any

from edge_serve.messages.infer import InferRequest
from edge_serve.messages.tensors import BY_CONFIG_NAME, BY_NUMBER, DataType, Shape, element_count
from edge_serve.workers.wire.frames import FrameError

#: outputs in a slot start on this, for SIMD and for `cudaHostRegister`
ALIGNMENT = 64

IN_FRAME, IN_ARENA, IN_NO_MEMORY = 0, 1, 2
#: bits of a place that are an offset; no arena is larger. Above them is the number of a lent arena, 0 = the model's own
OFFSET_BITS = 44
OFFSET_MASK = (1 << OFFSET_BITS) - 1
PAD = bytes(16)
#: index of a tensor that the configuration does not name
UNNAMED = 0xFFFF
#: in a mask of listed outputs: the names are in the extra JSON
NAMES_IN_EXTRA = 1 << 63


class _TensorStructs(dict[int, struct.Struct]):
    """Rank -> Struct of: rank, data type, index in the configuration, place, position, bytes, dims."""

    def __missing__(self, rank: int) -> struct.Struct:
        made = self[rank] = struct.Struct(f"<BBHIQQ{rank}q")
        return made


TENSOR = _TensorStructs()


def padded(nbytes: int) -> int:
    """Return `nbytes` rounded up to ALIGNMENT."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _row_bytes(config: dict[str, Any]) -> int:
    """Return the bytes of all outputs for one row; 0 = the configuration does not fix it."""
    total = 0
    for output in config.get("output", []):
        size = BY_CONFIG_NAME[output["data_type"]].size if output.get("data_type") in BY_CONFIG_NAME else 0
        dims = [int(dim) for dim in output.get("dims", [])]
        if not size or any(dim < 0 for dim in dims):
            return 0
        total += math.prod(dims) * size + ALIGNMENT
    return total


#: name (None: not in the configuration), type, shape, place, position, bytes
Described = tuple[str | None, DataType, Shape, int, int, int]

#: blocks, and sets of outputs, that are remembered for each model; beyond that they change all the time, and memory is
#: not free. The table is cleared at the limit, not a `Memo`: in a worker, the threads of all instances share it
_REMEMBERED = 512
_PARSE_ERRORS = (struct.error, KeyError, IndexError, ValueError)


class Blocks:
    """Reads blocks of one model's inputs or outputs.

    Args:
        in_order: sort the tensors as the configuration has them; else they stay as they were written.
    """

    __slots__ = ("_in_order", "_known", "_names")

    def __init__(self, names: tuple[str, ...], *, in_order: bool) -> None:
        self._names = names
        self._in_order = in_order
        self._known: dict[bytes, list[Described]] = {}

    def read(self, block: bytes) -> list[Described]:
        """Return the tensors of a block, each consistent in itself.

        Raises:
            FrameError: the bytes describe no tensors.
        """
        found = self._known.get(block)
        if found is None:
            try:
                found = self._parse(block)
            except _PARSE_ERRORS as error:
                raise FrameError(f"tensors cannot be read: {type(error).__name__}: {error}") from error
            if all(one[3] != IN_ARENA for one in found):
                if len(self._known) >= _REMEMBERED:
                    self._known.clear()
                self._known[block] = found
        return found

    def _parse(self, block: bytes) -> list[Described]:
        found = parse_block(block, self._names)
        if self._in_order:
            found.sort(key=lambda pair: pair[0])
        return [described for _, described in found]


def parse_block(block: bytes, names: Sequence[str]) -> list[tuple[int, Described]]:
    """Return the index and the description of each tensor of a block.

    Raises:
        FrameError: the bytes of a tensor do not make up its shape.
        struct.error, KeyError, IndexError: the bytes describe no tensors.
    """
    found: list[tuple[int, Described]] = []
    position = 0
    while position < len(block):
        made = TENSOR[block[position]]
        _, number, index, place, where, size, *dims = made.unpack_from(block, position)
        position += made.size
        datatype, shape = BY_NUMBER[number], tuple(dims)
        name = names[index] if index != UNNAMED else None
        if min(shape, default=0) < 0 or (datatype.size and element_count(shape) * datatype.size != size):
            raise FrameError(f"tensor '{name}' has {size} bytes, which is not {datatype.name} {list(shape)}")
        found.append((index, (name, datatype, shape, place, where, size)))
    return found


class TensorLayout:
    """The names of a model's tensors, numbered; equal on both sides because both read the completed configuration.

    Args:
        sorts_inputs: requests get their inputs in the order of the configuration, else in that of the client.

    Attributes:
        row_bytes: an upper bound of the outputs of one row; 0 = unknown.
        shape_tensors: inputs that have no batch dimension.
        cached: its answers may be kept (`response_cache`), so they say what they depend on.
        in_place: a sequence is its row in every batch (`direct`).
        reruns: a request may run several times with the same inputs (`iterative_sequence`).
        writes: its instances may write to their inputs; set by the worker, and from its answer by the front end.
        on_device: its instances in this worker take inputs in the memory of a GPU; set by the worker.
        counts_rows: users' code returns a batch, which may have another number of rows than the request; set by the
            worker.
    """

    __slots__ = (
        "batches",
        "cached",
        "counts_rows",
        "decoupled",
        "in_place",
        "input_blocks",
        "input_index",
        "inputs",
        "listed",
        "most_rows",
        "on_device",
        "output_bit",
        "output_blocks",
        "output_index",
        "outputs",
        "reruns",
        "row_bytes",
        "shape_tensors",
        "writes",
    )

    def __init__(self, config: dict[str, Any], *, sorts_inputs: bool = True) -> None:
        self.inputs: tuple[str, ...] = tuple(str(entry["name"]) for entry in config.get("input", []))
        sequences = config.get("sequence_batching") or {}
        self.inputs += tuple(str(control["name"]) for control in sequences.get("control_input", []))
        self.inputs += tuple(str(state["input_name"]) for state in sequences.get("state", []))
        self.outputs: tuple[str, ...] = tuple(str(entry["name"]) for entry in config.get("output", []))
        self.input_blocks = Blocks(self.inputs, in_order=sorts_inputs)
        self.output_blocks = Blocks(self.outputs, in_order=False)
        self.input_index = {name: i for i, name in enumerate(self.inputs)}
        self.output_index = {name: i for i, name in enumerate(self.outputs)}
        self.output_bit = {name: 1 << i for i, name in enumerate(self.outputs[:63])}
        self.most_rows = max(int(config.get("max_batch_size", 0)), 1)
        self.batches = int(config.get("max_batch_size", 0)) > 0
        self.decoupled = bool((config.get("model_transaction_policy") or {}).get("decoupled", False))
        self.cached = bool((config.get("response_cache") or {}).get("enable", False))
        self.in_place = bool(sequences) and "oldest" not in sequences
        self.reruns = bool(sequences.get("iterative_sequence", False))
        self.writes = self.on_device = self.counts_rows = False
        self.row_bytes = _row_bytes(config)
        self.shape_tensors = {str(entry["name"]) for entry in config.get("input", []) if entry.get("is_shape_tensor")}
        self.listed: dict[int, tuple[str, ...]] = {0: self.outputs}

    def names_of(self, mask: int) -> tuple[str, ...]:
        """Return the outputs whose bits are set, and list them."""
        if len(self.listed) >= _REMEMBERED:  # clients choose the sets
            self.listed = {0: self.outputs}
        names = self.listed[mask] = tuple(name for name, bit in self.output_bit.items() if bit & mask)
        return names

    def rows(self, request: InferRequest) -> int:
        """Return the number of rows of a request."""
        inputs = request.inputs
        if self.shape_tensors:
            inputs = [tensor for tensor in inputs if tensor.name not in self.shape_tensors]
        return inputs[0].shape[0] if self.batches and inputs and inputs[0].shape else 1
