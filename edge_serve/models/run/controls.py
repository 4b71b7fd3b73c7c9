"""Additions of a sequence batcher to requests: control tensors, slots, and null requests for empty slots.

Rules: triton-inference-server/core src/sequence_batch_scheduler (CreateBooleanControlTensors, SetControlTensors). A
null request is a copy of a real one with zeros for data and all controls false; its outputs go to no client.
"""

from __future__ import annotations

import struct

from edge_serve.config.model import model_config_pb2 as pb
from edge_serve.messages.infer import NULL_SEQUENCE_SLOT, SEQUENCE_END, SEQUENCE_START, InferRequest
from edge_serve.messages.tensors import BY_NUMBER, DataType, InferTensor, zero_tensor
from edge_serve.scheduling.core import Run

_Control = pb.ModelSequenceBatching.Control

#: row of `_booleans` for a null request; the other rows are START | END of the flags
_NULL = 4


class Controls:
    """The control tensors of one model."""

    def __init__(self, config: pb.ModelConfig) -> None:
        self._shape = (1, 1) if config.max_batch_size else (1,)
        #: by START | END of the flags, and one row for null requests
        self._booleans: list[list[InferTensor]] = [[] for _ in range(_NULL + 1)]
        self._correlation_id: tuple[str, DataType] | None = None
        for tensor in config.sequence_batching.control_input:
            for control in tensor.control:
                if control.kind == _Control.CONTROL_SEQUENCE_CORRID:
                    self._correlation_id = (tensor.name, BY_NUMBER[control.data_type])
                else:
                    self._add_boolean(tensor.name, control)
        self._null: tuple[object, InferRequest] = (None, InferRequest(""))

    def _add_boolean(self, name: str, control: pb.ModelSequenceBatching.Control) -> None:
        if control.int32_false_true:
            datatype, values = DataType.INT32, struct.pack("<2i", *control.int32_false_true)
        elif control.fp32_false_true:
            datatype, values = DataType.FP32, struct.pack("<2f", *control.fp32_false_true)
        else:
            datatype, values = DataType.BOOL, struct.pack("<2?", *control.bool_false_true)
        half = datatype.size
        either = [InferTensor(name, datatype, self._shape, value) for value in (values[:half], values[half:])]
        for flags in range(_NULL):
            match control.kind:
                case _Control.CONTROL_SEQUENCE_START:
                    value = bool(flags & SEQUENCE_START)
                case _Control.CONTROL_SEQUENCE_END:
                    value = bool(flags & SEQUENCE_END)
                case _:
                    value = True
            self._booleans[flags].append(either[value])
        self._booleans[_NULL].append(either[0])

    def requests(self, run: Run) -> list[InferRequest]:
        """Return the requests of a batch for the worker: with controls and slots, and with null requests in empty
        slots."""
        requests: list[InferRequest] = []
        if run.rows > len(run.slots):
            requests = [self._null_request(run.entries[0].request)] * run.rows
        for entry, slot in zip(run.entries, run.slots, strict=True):
            request = entry.request
            request.sequence_slot = slot
            request.inputs += self._booleans[request.flags & (SEQUENCE_START | SEQUENCE_END)]
            if self._correlation_id is not None:
                request.inputs.append(self._id_tensor(*self._correlation_id, request.correlation_id))
            if requests:
                requests[slot] = request
        return requests or [entry.request for entry in run.entries]

    def remove(self, request: InferRequest) -> None:
        """Remove what `requests` added, because the request is to run again."""
        count = len(self._booleans[0]) + (self._correlation_id is not None)
        del request.inputs[len(request.inputs) - count :]

    def _null_request(self, like: InferRequest) -> InferRequest:
        shapes = [(tensor.name, tensor.datatype, tensor.shape) for tensor in like.inputs]
        if self._null[0] != shapes:
            inputs = [zero_tensor(*one) for one in shapes]
            inputs += self._booleans[_NULL]
            if self._correlation_id is not None:
                inputs.append(self._id_tensor(*self._correlation_id, 0))
            self._null = (
                shapes,
                InferRequest(like.model_name, like.model_version, inputs=inputs, sequence_slot=NULL_SEQUENCE_SLOT),
            )
        return self._null[1]

    def _id_tensor(self, name: str, datatype: DataType, correlation_id: int | str) -> InferTensor:
        return InferTensor(name, datatype, self._shape, _id_bytes(datatype, correlation_id))


def _id_bytes(datatype: DataType, correlation_id: int | str) -> bytes:
    """Return a correlation ID in the type of its control. Validation has refused an ID of the wrong kind."""
    if datatype is DataType.BYTES:
        text = (str(correlation_id) if correlation_id else "").encode()
        return struct.pack("<I", len(text)) + text
    number = correlation_id if isinstance(correlation_id, int) else 0
    return (number % (1 << 64)).to_bytes(8, "little")[: datatype.size]
