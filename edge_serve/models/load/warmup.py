"""`model_warmup`: requests that run on every instance before the model is ready.

Rules: triton-inference-server/core src/backend_model_instance.cc (GenerateWarmupData, WarmUp): a sample runs
`batch_size` one-row requests together, `count` times, on each instance, past the scheduler; 0 rows = skipped.
"""

from __future__ import annotations

import asyncio
import logging
import math
import struct
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from random import Random

from edge_serve.aio.offload import offload
from edge_serve.config.model.model_config_pb2 import ModelConfig, ModelWarmup
from edge_serve.config.stages import read_file
from edge_serve.errors import EdgeServeError, InvalidArgument, with_advice
from edge_serve.files import find_within
from edge_serve.messages.infer import InferRequest
from edge_serve.messages.log_fields import DISPLAY, model_fields
from edge_serve.messages.signature import Signature
from edge_serve.messages.tensors import (
    BY_NUMBER,
    Buffer,
    DataType,
    InferTensor,
    element_count,
    join_bytes,
    split_bytes,
    zero_data,
)
from edge_serve.models.run.reshape import reshape_inputs
from edge_serve.protocol.inference.validate import validate
from edge_serve.workers.front.frames.batch import BatchReply
from edge_serve.workers.front.link import ModelListener
from edge_serve.workers.front.workers import OpenedModel

log = logging.getLogger(__name__)

_RANDOM_VALUES = 4096
_FLOATS = {DataType.FP16: "e", DataType.FP32: "f", DataType.FP64: "d"}


class WarmupListener(ModelListener):
    """Waits for one batch of one instance. It is the listener of a model, instead of the driver, until the model is
    ready. Responses of a decoupled model are discarded: the batch's reply says whether it worked."""

    def __init__(self) -> None:
        self._waiting: dict[int, asyncio.Future[BatchReply]] = {}

    def expect(self, instance: int) -> asyncio.Future[BatchReply]:
        """Return a future of the reply to the next batch of this instance."""
        future: asyncio.Future[BatchReply] = asyncio.get_running_loop().create_future()
        self._waiting[instance] = future
        return future

    def on_reply(self, instance: int, reply: BatchReply) -> None:
        """Resolve the future: the batch is done."""
        future = self._waiting.pop(instance, None)
        if future is not None and not future.done():
            future.set_result(reply)
        elif reply.lease is not None:  # the load, or a golden test, was called off meanwhile: the server stops
            reply.lease.release()

    def on_lost(self, lost: Mapping[int, EdgeServeError]) -> None:
        """Fail the futures: the worker died during the batches."""
        for instance, error in lost.items():
            future = self._waiting.pop(instance, None)
            if future is not None and not future.done():
                future.set_exception(error)

    def on_back(self, instance: int) -> None:
        """Do nothing: the load has failed already."""


async def warm_up(
    config: ModelConfig, signature: Signature, model_directory: Path, opened: OpenedModel, listener: WarmupListener
) -> None:
    """Run every sample on every instance.

    Raises:
        InvalidArgument: a sample cannot be made or does not fit the model, its data file is too small, or it failed.
        Internal: the data file cannot be read.
    """
    for sample in config.model_warmup:
        requests = await offload(_checked_requests, config, sample, model_directory, signature)
        if not requests:
            continue
        reshape_inputs(requests[0], signature)  # the requests of a sample share their tensors
        try:
            await asyncio.gather(*(_run(sample, requests, opened, listener, i) for i in opened.numbers))
        except EdgeServeError as error:
            # core src/backend_model_instance.cc, WarmUp: whatever the error, with a text for each and "; " behind it
            raise InvalidArgument(f"failed to run warmup sample '{sample.name}': {error.message}; ") from error


async def _run(
    sample: ModelWarmup, requests: list[InferRequest], opened: OpenedModel, listener: WarmupListener, instance: int
) -> None:
    name, text = requests[0].model_name, "model %s is running warmup sample '%s' on instance %d"
    for _ in range(sample.count or 1):
        log.info(text, name, sample.name, instance, extra={DISPLAY: True, **model_fields(name)})
        reply = listener.expect(instance)
        opened.execute(instance, -1, requests)
        done = await reply
        if done.lease is not None:
            done.lease.release()
        for one in done.replies:
            if one.error is not None:
                raise one.error


def zeros(config: ModelConfig) -> ModelWarmup:
    """Return a sample of zeros, with 1 for each variable dimension."""
    sample = ModelWarmup(name="zeros", batch_size=1)
    for spec in config.input:
        one = sample.inputs[spec.name]
        one.data_type = spec.data_type
        one.dims.extend(max(1, dim) for dim in spec.dims)
        one.zero_data = True
    return sample


def make_requests(config: ModelConfig, sample: ModelWarmup, model_directory: Path) -> list[InferRequest]:
    """Return the `batch_size` requests of a sample, each with one row; a model without batches gets as many without
    rows. Random data is the same each time. Inputs that the model does not have are left out.

    Raises:
        InvalidArgument, Internal: see `warm_up`.
    """
    if config.max_batch_size and sample.batch_size > config.max_batch_size:
        raise InvalidArgument(
            f"warmup sample '{sample.name}' has batch_size {sample.batch_size}, but '{config.name}' allows at most "
            f"{config.max_batch_size}"
        )
    batch = (1,) if config.max_batch_size else ()
    names = sorted(sample.inputs.keys() & _known_inputs(config))
    inputs = [_tensor(name, sample.inputs[name], batch, model_directory) for name in names]
    order = {spec.name: i for i, spec in enumerate(config.input)}
    inputs.sort(key=lambda tensor: order.get(tensor.name, len(order)))
    return [InferRequest(config.name, inputs=inputs) for _ in range(sample.batch_size)]


def _checked_requests(
    config: ModelConfig, sample: ModelWarmup, model_directory: Path, signature: Signature
) -> list[InferRequest]:
    """Return `make_requests` after a check against the signature. As in Triton, it leaves control and state inputs out.

    Raises:
        InvalidArgument, Internal: see `warm_up`.
    """
    known = _known_inputs(config)
    for name in sorted(sample.inputs.keys() - known):
        text = "warmup sample '%s' has input '%s', which model %s does not have, and is run without it: correct the key"
        log.warning(f"{text}; the inputs are %s", sample.name, name, config.name, ", ".join(sorted(known)),
                    extra=model_fields(config.name))  # fmt: skip
    requests = make_requests(config, sample, model_directory)
    if not requests:
        return []
    inputs = []
    for tensor in requests[0].inputs:
        if (spec := signature.inputs.get(tensor.name)) is not None:
            has_batch = signature.max_batch_size and spec.is_shape_tensor  # clients send a shape tensor without it
            inputs.append(replace(tensor, shape=tensor.shape[1:]) if has_batch else tensor)
    try:
        validate(InferRequest(config.name, inputs=inputs, correlation_id=""), signature)
    except InvalidArgument as error:
        raise InvalidArgument(with_advice(error.message, f"correct model_warmup sample '{sample.name}'")) from error
    return requests


def _known_inputs(config: ModelConfig) -> set[str]:
    """Return the names of the model's inputs, control and state inputs too."""
    sequences = config.sequence_batching
    known = {spec.name for spec in config.input}
    known.update(control.name for control in sequences.control_input)
    known.update(state.input_name for state in sequences.state)
    return known


def _tensor(name: str, spec: ModelWarmup.Input, batch: tuple[int, ...], model_directory: Path) -> InferTensor:
    if any(dim < 0 for dim in spec.dims):
        raise InvalidArgument(
            f"warmup setting expects all variable-size dimensions are specified for input '{name}', found "
            f"{list(spec.dims)}"
        )
    datatype = BY_NUMBER.get(spec.data_type)
    if datatype is None:
        raise InvalidArgument(f"warmup input '{name}' must specify 'data_type'")
    shape = batch + tuple(spec.dims)
    match spec.WhichOneof("input_data_type"):
        case "random_data":
            data: Buffer = random_data(datatype, shape, name)
        case "input_data_file":
            data = _from_file(_path(model_directory, spec.input_data_file), name, datatype, shape)
        case "zero_data":
            data = zero_data(datatype, shape)
        case _:
            raise InvalidArgument(f"warmup setting expects input '{name}' to have input_data_type set")
    return InferTensor(name, datatype, shape, data)


def random_data(datatype: DataType, shape: tuple[int, ...], seed: str) -> bytes:
    """Return the bytes of a tensor of random values: floats between 0 and 1, other numbers of any size, strings of 16
    characters. A large tensor repeats its first 4096 values. The same seed gives the same bytes."""
    random, count = Random(seed), element_count(shape)
    if not count:
        return b""
    some = min(count, _RANDOM_VALUES)
    if datatype is DataType.BYTES:
        block = join_bytes(random.randbytes(8).hex() for _ in range(some))
    elif datatype is DataType.BOOL:
        block = bytes(random.choices((0, 1), k=some))
    elif datatype is DataType.BF16:  # the upper half of FP32
        block = b"".join(struct.pack("<f", random.random())[2:] for _ in range(some))
    elif datatype in _FLOATS:
        block = struct.pack(f"<{some}{_FLOATS[datatype]}", *(random.random() for _ in range(some)))
    else:
        block = random.randbytes(some * datatype.size)
    return (block * math.ceil(count / some))[: len(block) // some * count]


def _path(model_directory: Path, name: str) -> Path:
    path = find_within(model_directory, f"warmup/{name.lstrip('/')}")  # Triton joins them as text
    if path is None:
        raise InvalidArgument(f"warmup data file '{name}' is outside the directory of the model")
    return path


def _from_file(path: Path, name: str, datatype: DataType, shape: tuple[int, ...]) -> Buffer:
    data = read_file(path)
    if datatype is DataType.BYTES:
        elements = split_bytes(data)
        if len(elements) < element_count(shape):
            raise InvalidArgument(
                f"warmup data in '{path}' has {len(elements)} strings, expected {element_count(shape)}"
            )
        return join_bytes(elements[: element_count(shape)])
    expected = element_count(shape) * datatype.size
    if len(data) < expected:
        raise InvalidArgument(
            f"lack of warmup data for input '{name}' in '{path}': expected {expected} bytes, found {len(data)}"
        )
    return data[:expected]
