"""`edge-serve check --infer`: sends one request to each loaded model, and compares the answer with its configuration.

The request is the first sample of the model's `model_warmup`, else zeros. An ensemble has no sample of its own, so it
gets those of the members that take its inputs. A model that does not answer in time is killed in its worker, so that
the check goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field, replace

from edge_serve.aio.offload import offload
from edge_serve.config.checks.ensemble import member_key
from edge_serve.errors import EdgeServeError
from edge_serve.messages.infer import SEQUENCE_END, SEQUENCE_START, InferRequest, InferResponse
from edge_serve.messages.log_fields import OUTPUT
from edge_serve.messages.signature import Signature, answered_dims
from edge_serve.messages.tensors import DataType, InferTensor
from edge_serve.models.control.registry import Registry
from edge_serve.models.ensemble.flight import Lookup
from edge_serve.models.load.dependencies import members_of
from edge_serve.models.load.warmup import make_requests, zeros
from edge_serve.models.versions.served import Served
from edge_serve.protocol.inference.validate import validate
from edge_serve.records import slotted

#: correlation id of a sequence of one request
_SEQUENCE = 1
#: how long a worker may take to start again, and how often it is looked at, seconds
_RESTART_SECONDS, _LOOK_SECONDS = 15.0, 0.02
#: responses of a decoupled model that are compared; it may send any number
_MOST_RESPONSES = 1000
_ZEROS = "zeros"


@slotted
class SentRequest:
    """One version that was asked.

    Attributes:
        request: what it was asked: `zeros`, the name of its sample, or the members that an ensemble's samples are of.
        responses: how many came; a model that is not decoupled sends one.
        outputs: `OUT TYPE_FP32 [1, 4]`, of the first response.
        problems: why the answer is not as the configuration says; empty = it is.
    """

    version: int
    request: str = _ZEROS
    seconds: float = 0.0
    responses: int = 0
    outputs: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


class CalledModels:
    """Finds the versions that models call (business logic scripting), and notes the names of those that do not serve.

    Args:
        chosen: the command checks some models of the repository only.
    """

    def __init__(self, lookup: Lookup, *, chosen: bool) -> None:
        self._lookup = lookup
        self._chosen = chosen
        self._absent: dict[str, None] = {}

    def __call__(self, name: str, version: str, correlation_id: int | str = 0, flags: int = 0) -> Served:
        """Return the version to call.

        Raises:
            EdgeServeError: it does not serve.
        """
        try:
            return self._lookup(name, version, correlation_id, flags)
        except EdgeServeError:
            self._absent[name] = None
            raise

    def clear(self) -> None:
        """Discard the names: another model is asked."""
        self._absent.clear()

    def advice(self) -> str:
        """Return which models were called since `clear` and are not loaded, and what to do; "" = none was."""
        if not self._absent:
            return ""
        names = " and ".join(f"'{name}'" for name in self._absent)
        are = "are" if len(self._absent) > 1 else "is"
        if self._chosen:
            options = " ".join(f"--model {name}" for name in self._absent)
            return f"it calls {names}, which {are} not loaded: add {options}, or check the whole repository"
        return f"it calls {names}, which {are} not loaded: no such model is in the repository, or it failed to load"


async def ask_all(name: str, registry: Registry, called: CalledModels, seconds: float) -> list[SentRequest]:
    """Ask every loaded version of a model."""
    return [await _ask(one, registry, called, seconds) for one in registry.served() if one.identity == name]


async def _ask(served: Served, registry: Registry, called: CalledModels, seconds: float) -> SentRequest:
    asked = SentRequest(int(served.version))
    called.clear()
    samples = served.config.model_warmup
    if samples:
        asked.request = f"model_warmup sample '{samples[0].name}'"
    try:
        if not all([await is_up(one) for one in with_members(served, registry)]):
            asked.problems.append("its worker is not there, or the model's own is_ready says that it is not ready")
            return asked
        request, members = await offload(first_request, served, registry)
        if members:
            asked.request = f"the model_warmup sample of {' and '.join(members)}"
        started = time.monotonic()
        with _heard(served) as warnings:
            error = await _compared(served, request, asked, seconds)
        asked.seconds = time.monotonic() - started
        asked.problems += warnings if asked.problems else []
    except EdgeServeError as refused:  # the request cannot be made, or does not fit
        asked.problems += [refused.message, _hint(served, asked)]
        return asked
    if error is not None:
        busy = await kill_busy(registry, error)
        if not busy:
            hint = called.advice() or _hint(served, asked)
        elif busy == [served.name]:
            hint = "the model was still computing: it hangs, or it needs a longer --infer-timeout"
        else:
            hint = f"still computing: {', '.join(busy)}"
        asked.problems += [error, hint]
    return asked


def _hint(served: Served, asked: SentRequest) -> str:
    """Return the advice for an error that may be the fault of the request."""
    if asked.request != _ZEROS:
        return f"it was asked with {asked.request}"
    steps = served.config.ensemble_scheduling.step
    takers = dict.fromkeys(
        step.model_name for step in steps if set(step.input_map.values()) & set(served.signature.inputs)
    )
    place = f"the config.pbtxt of {' and '.join(takers)}" if takers else "its config.pbtxt"
    return (
        "it was asked with zeros: if the model cannot take them, write a sample that it can take, a model_warmup with "
        f"input_data_file, into {place}"
    )


def with_members(served: Served, registry: Registry) -> list[Served]:
    """Return the version and, of an ensemble, those that it needs."""
    found = [served]
    for name in members_of(served.config):
        with contextlib.suppress(EdgeServeError):  # its error is the answer to the request
            found += with_members(registry.lookup(name, ""), registry)
    return found


async def is_up(served: Served) -> bool:
    """Wait until the version has all its workers: an earlier request may have ended one of them."""
    await _until(lambda: served.opened is None or served.opened.complete)
    return served.healthy


async def kill_busy(registry: Registry, reason: str) -> list[str]:
    """Kill the workers of the models that have a request in flight, and wait for their end. Return their names."""
    busy = [one for one in registry.served() if one.opened is not None and one.runner.in_flight()]
    for one in busy:
        assert one.opened is not None
        one.opened.restart(f"edge-serve check: {reason}")
    await _until(lambda: not any(one.runner.in_flight() for one in busy))
    return [one.name for one in busy]


async def _until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + _RESTART_SECONDS
    while not condition() and time.monotonic() < end:
        await asyncio.sleep(_LOOK_SECONDS)


def _samples(served: Served, registry: Registry) -> dict[str, tuple[str, InferTensor]]:
    """Return the inputs in the first warm-up sample of a model, or of the members that take an ensemble's inputs.

    Returns:
        Input -> the model that has the sample, and the tensor.
    """
    found: dict[str, tuple[str, InferTensor]] = {}
    if served.config.model_warmup:
        requests = make_requests(served.config, served.config.model_warmup[0], served.directory)
        return {tensor.name: (served.name, tensor) for tensor in (requests[0].inputs if requests else ())}
    for step in served.config.ensemble_scheduling.step:
        with contextlib.suppress(EdgeServeError):  # its error is the answer to the request
            version = str(step.model_version) if step.model_version >= 0 else ""
            of_member = _samples(registry.lookup(member_key(step), version), registry)
            for name, tensor_name in step.input_map.items():
                if name in of_member and tensor_name in served.signature.inputs:
                    found.setdefault(tensor_name, of_member[name])
    return found


def first_request(served: Served, registry: Registry) -> tuple[InferRequest, list[str]]:
    """Return a request that the model should be able to answer, and the members whose samples an ensemble's has.

    Raises:
        EdgeServeError: its sample cannot be made, or does not fit.
    """
    config, signature = served.config, served.signature
    requests: list[InferRequest] = []
    if config.model_warmup:  # with batch_size: 0 a sample is switched off
        requests = make_requests(config, config.model_warmup[0], served.directory)
        wanted = set(signature.inputs)
    if not requests:
        requests = make_requests(config, zeros(config), served.directory)
        wanted = {spec.name for spec in signature.inputs.values() if not spec.optional}
        wanted = wanted or set(list(signature.inputs)[:1])
    request = requests[0]
    lent = _samples(served, registry) if served.config.HasField("ensemble_scheduling") else {}
    request.inputs = [
        replace(lent[tensor.name][1], name=tensor.name) if tensor.name in lent else tensor
        for tensor in request.inputs
        if tensor.name in wanted
    ]
    if signature.has_sequence_batching:
        is_text = signature.correlation_id_type is DataType.BYTES
        request.correlation_id = str(_SEQUENCE) if is_text else _SEQUENCE
        request.flags = SEQUENCE_START | SEQUENCE_END
    validate(request, signature)
    return request, sorted({name for name, _ in lent.values()})


class _Undeclared(logging.Handler):
    """Collects the log lines about outputs that a model returns and its configuration does not declare.

    Clients do not receive them, so the response does not show them. Often one is the missing output, misspelt.
    """

    def __init__(self, served: Served) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []
        self._declared = served.signature.outputs
        self._prefix = f"model '{served.name}' version {served.version}: "

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if getattr(record, OUTPUT, None) not in (None, *self._declared) and text.startswith(self._prefix):
            self.texts.append(text[len(self._prefix) :])


@contextlib.contextmanager
def _heard(served: Served) -> Iterator[list[str]]:
    handler, logger = _Undeclared(served), logging.getLogger("edge_serve")
    logger.addHandler(handler)
    try:
        yield handler.texts
    finally:
        logger.removeHandler(handler)


async def converse(
    served: Served, request: InferRequest, on_response: Callable[[InferResponse], None], seconds: float
) -> None:
    """Send a request and wait for the last response. `on_response` gets each one, whose memory is then released.

    Raises:
        EdgeServeError: a response is an error.
        asyncio.TimeoutError: the last response did not come in time. The request is cancelled.
    """
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def receive(response: InferResponse) -> None:
        try:
            if done.done():
                return
            if response.error is not None:
                done.set_exception(response.error)
                return
            if not response.null:
                on_response(response)
            if response.final:
                done.set_result(None)
        finally:
            if response.lease is not None:
                response.lease.release()

    ticket = served.submit(request, receive)
    try:
        await asyncio.wait_for(done, seconds)
    except asyncio.TimeoutError:
        ticket.cancel()
        raise


async def _compared(served: Served, request: InferRequest, asked: SentRequest, seconds: float) -> str | None:
    """Send the request and compare its responses. Return why the last one did not come; None = it came."""
    rows = request.rows

    def compare(response: InferResponse) -> None:
        asked.responses += 1
        if asked.responses == 1:
            asked.outputs = [f"{tensor.name} {_face(tensor)}" for tensor in response.outputs]
        if asked.responses <= _MOST_RESPONSES and not asked.problems:
            asked.problems += differences(response.outputs, served.signature, rows, served.config.backend)

    try:
        await converse(served, request, compare, seconds)
    except asyncio.TimeoutError:
        came = f"{asked.responses} responses came, but not the last one" if asked.responses else "no answer"
        return f"{came} within {seconds:g} s (--infer-timeout)"
    except EdgeServeError as error:
        return error.message.strip()
    return None


def differences(outputs: Sequence[InferTensor], signature: Signature, rows: int, backend: str) -> list[str]:
    """Return how the outputs of a response differ from the configuration.

    A model with optional inputs may give those outputs only that follow from the inputs it got.
    """
    found = {tensor.name: tensor for tensor in outputs}
    may_lack = bool(found) and any(spec.optional for spec in signature.inputs.values())
    times = Counter(tensor.name for tensor in outputs)
    problems = [
        f"output {name} is {count} times in one response: return it once" for name, count in times.items() if count > 1
    ]
    for spec in signature.outputs.values():
        expected = ((rows,) if signature.max_batch_size else ()) + answered_dims(backend, spec.dims)
        tensor = found.get(spec.name)
        declared = f"{spec.datatype.config_name} {list(expected)}"
        if tensor is None and may_lack:
            continue
        if tensor is None:
            problems.append(f"output {spec.name} is missing: config.pbtxt declares {declared}, the answer has "
                            f"{', '.join(found) or 'no outputs'}")  # fmt: skip
        elif tensor.datatype is not spec.datatype or not _fits(tensor.shape, expected):
            problems.append(f"output {spec.name} is {_face(tensor)}, config.pbtxt declares {declared}")
    return problems


def _fits(shape: Sequence[int], expected: Sequence[int]) -> bool:
    return len(shape) == len(expected) and all(b in (a, -1) for a, b in zip(shape, expected, strict=True))


def _face(tensor: InferTensor) -> str:
    return f"{tensor.datatype.config_name} {list(tensor.shape)}"
