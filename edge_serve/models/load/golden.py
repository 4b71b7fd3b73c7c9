"""The golden test as a stage of a load: sends the recorded inputs to a model that serves no client yet.

The inputs go through a driver of their own, so that sequences, batching, and decoupled responses work as usual, and no
statistics count them. Values are compared here. Latency and memory are judged by `edge-serve check` alone: beside a
busy version the figures say little about the new one, and loads would fail by chance.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, TypeVar

from edge_serve.aio.offload import offload
from edge_serve.errors import EdgeServeError, Internal, InvalidArgument, Unavailable
from edge_serve.golden.reader import DIRECTORY, DOCUMENT, GoldenSample, GoldenTensor, GoldenTest, discard, tensors_of
from edge_serve.messages.infer import InferRequest, InferResponse
from edge_serve.messages.log_fields import model_fields
from edge_serve.messages.signature import Signature
from edge_serve.messages.tensors import InferTensor
from edge_serve.models.run.driver import Driver
from edge_serve.models.run.runner import Runner
from edge_serve.models.versions.served import Served
from edge_serve.protocol.inference.validate import validate
from edge_serve.records import slotted

if TYPE_CHECKING:
    from edge_serve.golden.comparison import OutputFigures

T = TypeVar("T")

log = logging.getLogger(__name__)

#: how long reading the files of one sample may take, seconds
READ_SECONDS = 30.0
#: differences that an error lists; more are counted
_MOST_PROBLEMS = 3
_ADVICE = f"repair the model, or if its new answers are right, record {DIRECTORY}/ again (docs/golden_tests.md)"


@slotted
class SampleFigures:
    """The outcome of one sample.

    Attributes:
        seconds: from the request to its last response.
        outputs: in the order of golden.json, response by response.
        error: why there are no outputs, or not as many responses as expected; "" = no error.
    """

    sample: str
    seconds: float = 0.0
    outputs: list[OutputFigures] = field(default_factory=list)
    error: str = ""

    @property
    def problems(self) -> list[str]:
        """The differences from the recorded responses."""
        outputs = [f"output '{one.output}': {one.problem}" for one in self.outputs if one.problem]
        return [f"sample '{self.sample}': {text}" for text in ([self.error] if self.error else []) + outputs]


async def prove(served: Served, test: GoldenTest, seconds: float, driver: Driver) -> None:
    """Run the golden test of a version that has just been opened, through a driver that is used for nothing else.

    Args:
        seconds: how long the model may take to answer one sample.

    Raises:
        EdgeServeError: the answers are not as recorded, or there are none.
    """
    opened = served.opened
    assert opened is not None, "an ensemble has no driver"
    before = opened.listener
    driver.model, opened.listener, opened.tests = opened, driver, True
    try:
        await prove_with(served, test, seconds, driver)
        await _wait_idle(driver, seconds)
    finally:
        opened.listener, opened.tests = before, False


async def prove_with(served: Served, test: GoldenTest, seconds: float, runner: Runner) -> None:
    """Run the golden test of a version through `runner`.

    Raises:
        EdgeServeError: as `prove`.
    """
    name, version = served.name, served.version
    began = time.monotonic()
    samples = await run_golden(replace(served, runner=runner), test, seconds)
    problems = [text for sample in samples for text in sample.problems]
    if problems:
        more = f"; and {len(problems) - _MOST_PROBLEMS} more" if len(problems) > _MOST_PROBLEMS else ""
        raise InvalidArgument(
            f"model '{name}' version {version} fails its golden test: {'; '.join(problems[:_MOST_PROBLEMS])}{more}. "
            f"What to do: {_ADVICE}"
        )
    text, extra = "model %s version %s passed its golden test: %d samples in %.2f s", model_fields(name, version)
    log.info(text, name, version, len(samples), time.monotonic() - began, extra=extra)


async def run_golden(served: Served, test: GoldenTest, seconds: float) -> list[SampleFigures]:
    """Send each sample, one after the other, and compare the answers. A sample that gets no answer ends the test.

    Raises:
        EdgeServeError: the test does not fit the model, or compares nothing; a file cannot be read; or the model's
            worker died or hangs.
    """
    test.check_compares()
    check_fit(test, served.signature)
    figures = []
    for sample in test.samples:
        figures.append(await run_sample(served, sample, seconds))
    return figures


def check_fit(test: GoldenTest, signature: Signature) -> None:
    """Check what can be told without a request; `validate` checks the inputs.

    Raises:
        InvalidArgument: the test expects outputs that the model does not have, or another kind of model.
    """
    for sample in test.samples:
        if sample.streams != signature.decoupled:
            kind, expected = ("decoupled", "responses") if signature.decoupled else ("not decoupled", "outputs")
            raise _unfit(sample, f"the model is {kind}: expected '{expected}'")
    for sample, tensor in tensors_of(test):
        spec = signature.outputs.get(tensor.name)
        if spec is None:
            raise _unfit(sample, f"found output '{tensor.name}', expected one of {', '.join(signature.outputs)}")


async def run_sample(served: Served, sample: GoldenSample, seconds: float) -> SampleFigures:
    """Send one sample, and compare the answer.

    Raises:
        EdgeServeError: as `run_golden`.
    """
    return await converse(served, sample, await read_limited(request_of, sample, served.signature), seconds)


async def converse(served: Served, sample: GoldenSample, request: InferRequest, seconds: float) -> SampleFigures:
    """Send the request of a sample, and compare the answer.

    Raises:
        Unavailable: the request was refused, the model's worker is not there, or a file cannot be read.
        EdgeServeError: the worker died of the request, or no answer came within `seconds`.
    """
    return await _Conversation(served, sample).run(request, seconds)


def request_of(sample: GoldenSample, signature: Signature) -> InferRequest:
    """Return the request of a sample, validated. Reads files.

    Raises:
        InvalidArgument: it does not fit the model, or a file cannot be read.
    """
    try:
        request = sample.request(signature.model_name)
        validate(request, signature)
    except EdgeServeError as error:
        raise _unfit(sample, error.message) from error
    return request


async def read_limited(function: Callable[..., T], *arguments: object) -> T:
    """Call a function that reads files of a golden test, in a thread.

    Raises:
        Unavailable: the file system does not answer.
    """
    try:
        return await asyncio.wait_for(offload(function, *arguments), READ_SECONDS)
    except asyncio.TimeoutError:
        text = f"{DIRECTORY}/ could not be read within {READ_SECONDS:g} s: see to the file system that it lies on"
        raise Unavailable(text) from None


class _Conversation:
    """The request of one sample and its responses, which are compared as they arrive because their memory is needed
    again."""

    def __init__(self, served: Served, sample: GoldenSample) -> None:
        self._served = served
        self._sample = sample
        self._responses: asyncio.Queue[InferResponse] = asyncio.Queue()
        self._last = 0.0
        self._figures = SampleFigures(sample.name)

    async def run(self, request: InferRequest, seconds: float) -> SampleFigures:
        """Send the request, and return the figures.

        Raises:
            EdgeServeError: the model's worker died, or no answer came within `seconds`.
        """
        began = time.monotonic()
        ticket = self._served.submit(request, self._on_response)
        try:
            await asyncio.wait_for(self._listen(), seconds)
        except asyncio.TimeoutError:
            ticket.cancel()
            text = f"golden sample '{self._sample.name}': the last response did not come within {seconds:g} s"
            raise Internal(text) from None
        finally:
            while not self._responses.empty():
                _release(self._responses.get_nowait())
        self._figures.seconds = self._last - began
        await offload(discard, request.inputs)
        return self._figures

    def _on_response(self, response: InferResponse) -> None:
        self._last = time.monotonic()
        self._responses.put_nowait(response)

    async def _listen(self) -> None:
        count, expected = 0, self._sample.responses
        while True:
            response = await self._responses.get()
            try:
                if response.error is not None:
                    self._fail(response.error)
                    return
                if not response.null:
                    if count < len(expected):
                        compared = await read_limited(_compared, response.outputs, expected[count])
                        self._figures.outputs += compared
                    count += 1
            finally:
                _release(response)
            if response.final:
                if count != len(expected):
                    self._figures.error = f"{count} responses came, expected {len(expected)}"
                return

    def _fail(self, error: EdgeServeError) -> None:
        """Note an error of the model's own.

        Raises:
            EdgeServeError: the worker died, or is not there: no further sample would get an answer.
        """
        opened = self._served.opened
        if isinstance(error, Unavailable) or (opened is not None and not opened.complete):
            raise type(error)(f"golden sample '{self._sample.name}': {error.message}") from error
        self._figures.error = f"the model failed: {error.message.strip()}"


def _compared(outputs: Sequence[InferTensor], expected: Sequence[GoldenTensor]) -> list[OutputFigures]:
    from edge_serve.golden.comparison import compare  # with NumPy, which a start does without

    found = {tensor.name: tensor for tensor in outputs}
    try:
        recorded = [one.read() for one in expected]
    except InvalidArgument as error:  # the file existed when the test was read, so the model is not to blame
        raise Unavailable(error.message) from error
    pairs = zip(expected, recorded, strict=True)
    figures = [compare(found.get(one.name), want, one.rtol, one.atol) for one, want in pairs]
    discard(recorded)
    return figures


def _release(response: InferResponse) -> None:
    if response.lease is not None:
        response.lease.release()
        response.lease = None


def _unfit(sample: GoldenSample, text: str) -> InvalidArgument:
    return InvalidArgument(f"{DIRECTORY}/{DOCUMENT}: sample '{sample.name}' does not fit the model: {text}")


async def _wait_idle(driver: Driver, seconds: float) -> None:
    """Wait until nothing of the test is left in the workers; a decoupled model may return after its last response."""
    idle = asyncio.Event()
    driver.stop(idle.set)
    try:
        await asyncio.wait_for(idle.wait(), seconds)
    except asyncio.TimeoutError:
        raise Unavailable(f"the golden test did not end within {seconds:g} s after its last response") from None
