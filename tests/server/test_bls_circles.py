"""Models whose calls wait for each other: a call that would wait for ever is refused, and no other one."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.server.bls_models import DOUBLE, model
from tests.server.running import Running, running
from tests.server.test_bls import said

#: the three servers have a worker for each instance of 18 models
pytestmark = pytest.mark.slow

#: what every model here gets as X decides how deep it goes
_TELL = """
    def told(self, found):
        if found.has_error():
            return found.error().message()
        text = pb_utils.get_output_tensor_by_name(found, "TEXT")
        if text is None:
            return answer(found)
        return json.loads(text.as_numpy()[0])
"""


def _asks(name: str) -> str:
    return f"""pb_utils.InferenceRequest(
            model_name="{name}", requested_output_names=["TEXT"],
            inputs=[pb_utils.get_input_tensor_by_name(requests[0], "X")])"""


def async_caller(*names: str) -> str:
    """Calls all of them at once, and says what they said."""
    calls = ", ".join(f"{_asks(name)}.async_exec()" for name in names)
    return f"""
    async def execute(self, requests):
        return [text(*[self.told(found) for found in await asyncio.gather({calls})])]
{_TELL}"""


def plain_caller(name: str) -> str:
    return f"""
    def execute(self, requests):
        return [text(self.told({_asks(name)}.exec()))]
{_TELL}"""


SLOW = DOUBLE.replace("        answers = []", "        time.sleep(0.1)\n        answers = []")
#: asks itself, level by level, until X is 0
LEVELS = """
    async def execute(self, requests):
        left = int(pb_utils.get_input_tensor_by_name(requests[0], "X").as_numpy()[0])
        await asyncio.sleep(0.01)
        if left:
            x = pb_utils.Tensor("X", np.array([left - 1], np.int32))
            call = pb_utils.InferenceRequest(model_name="levels", requested_output_names=["TEXT"], inputs=[x])
            found = await call.async_exec()
            if found.has_error():
                return [text(found.error().message())]
            return [pb_utils.InferenceResponse(found.output_tensors())]
        return [text("bottom")]
"""
MANY = """
    async def execute(self, requests):
        found = await asyncio.gather(*(ask("slow", n).async_exec() for n in range(5)))
        return [text(*map(answer, found))]
"""
#: its call is queued behind its own batch, which does not wait for it
FORGETS = """
    async def execute(self, requests):
        left = int(pb_utils.get_input_tensor_by_name(requests[0], "X").as_numpy()[0])
        if left:
            x = pb_utils.Tensor("X", np.array([0], np.int32))
            self.call = pb_utils.InferenceRequest(
                model_name="forgets", requested_output_names=["TEXT"], inputs=[x]).async_exec()
            self.call.add_done_callback(lambda done: setattr(self, "found", done.result().has_error()))
            self.found = None
            return [text("asked")]
        if self.found is None:
            await asyncio.sleep(0)
        return [text(self.found)]
"""
#: goes on without an answer: by its own timer, or because a thread of its own says so
GIVES_UP = """
    async def execute(self, requests):
        call = {asks}.async_exec()
        try:
            found = await asyncio.wait_for(call, 0.3)
            return [text(found.error().message())]
        except asyncio.TimeoutError:
            return [text("given up")]
"""
THREAD = """
    called = False

    async def execute(self, requests):
        if self.called:
            return [text("called")]
        self.called = True
        call = {asks}.async_exec()
        loop, enough = asyncio.get_running_loop(), asyncio.Event()

        def wake():
            time.sleep(0.3)
            loop.call_soon_threadsafe(enough.set)

        threading.Thread(target=wake).start()
        await asyncio.wait([asyncio.ensure_future(enough.wait()), call], return_when=asyncio.FIRST_COMPLETED)
        return [text(call.result().error().message() if call.done() else "woken")]
"""
#: a slow member, and then the model that has called the ensemble
ENSEMBLE = """
platform: "ensemble"
max_batch_size: 0
input {{ name: "X" data_type: TYPE_INT32 dims: [ -1 ] }}
output {{ name: "TEXT" data_type: TYPE_STRING dims: [ -1 ] }}
ensemble_scheduling {{
  step {{
    model_name: "slow" model_version: -1
    input_map {{ key: "X" value: "X" }} output_map {{ key: "Y" value: "T" }}
  }}
  step {{
    model_name: "{caller}" model_version: -1
    input_map {{ key: "X" value: "T" }} output_map {{ key: "TEXT" value: "TEXT" }}
  }}
}}
"""
#: caller -> the ensemble that it calls; with a second instance the third level would be refused
ENSEMBLES = {"via_plain": "plain_chain", "via_async": "async_chain", "via_two": "two_chain"}
#: model -> its code, and how many instances it has
CIRCLES: dict[str, tuple[str, int]] = {
    "alone": (async_caller("alone"), 2),
    "a": (async_caller("b"), 1),
    "b": (async_caller("c"), 1),
    "c": (async_caller("a"), 1),
    "mixed": (async_caller("plain"), 1),
    "plain": (plain_caller("mixed"), 1),
    "both": (async_caller("slow_text", "both"), 1),
    "slow_text": ('\n    def execute(self, requests):\n        time.sleep(0.1)\n        return [text("slow")]\n', 1),
}
OTHERS = {
    "slow": (SLOW, 1),
    "levels": (LEVELS, 3),
    "many": (MANY, 1),
    "forgets": (FORGETS, 1),
    "gives_up": (GIVES_UP.format(asks=_asks("gives_up")), 1),
    "thread": (THREAD.format(asks=_asks("thread")), 1),
}
CALLERS = {
    "slow": (SLOW, 1),
    "via_plain": (plain_caller("plain_chain"), 1),
    "via_async": (async_caller("async_chain"), 1),
    "via_two": (plain_caller("two_chain"), 2),
}


@contextlib.contextmanager
def serving(root: Path, models: Mapping[str, tuple[str, int]]) -> Iterator[Running]:
    """A server with these models, and the ensembles whose callers are among them."""
    for name, (code, instances) in models.items():
        model(root, name, code, output="Y" if name == "slow" else "TEXT", instances=instances)
    for caller in models.keys() & ENSEMBLES.keys():
        (root / ENSEMBLES[caller] / "1").mkdir(parents=True)
        (root / ENSEMBLES[caller] / "config.pbtxt").write_text(ENSEMBLE.format(caller=caller))
    with running(f"--model-repository={root}") as started:
        yield started


@pytest.fixture(scope="module")
def circles(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(tmp_path_factory.mktemp("circles"), CIRCLES) as started:
        yield started


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(tmp_path_factory.mktemp("others"), OTHERS) as started:
        yield started


@pytest.fixture(scope="module")
def callers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(tmp_path_factory.mktemp("callers"), CALLERS) as started:
        yield started


def circle(name: str) -> str:
    return (
        f"Model {name} - Error when running inference: every instance of '{name}' waits for the instance that makes "
        "this call, so it would never be answered. Models that call themselves or each other need an instance for "
        "each level (instance_group)"
    )


@pytest.mark.parametrize("caller", ENSEMBLES)
def test_a_circle_through_an_ensemble_is_refused(callers: Running, caller: str) -> None:
    text = circle(ENSEMBLES[caller]).replace("of '", "of a member of '")
    for _ in range(2):
        assert innermost(said(callers, caller, 9)) == text


def innermost(found: Any) -> Any:
    while isinstance(found, list) and len(found) == 1:
        found = found[0]
    return found


@pytest.mark.parametrize(
    ("first", "refused"),
    [("alone", "alone"), ("a", "a"), ("b", "b"), ("mixed", "mixed"), ("plain", "plain")],
)
def test_a_circle_of_calls_is_refused(circles: Running, first: str, refused: str) -> None:
    for _ in range(2):
        assert innermost(said(circles, first, 9)) == circle(refused)


def test_more_levels_than_instances_are_a_circle(others: Running) -> None:
    assert innermost(said(others, "levels", 9)) == circle("levels")


def test_calls_beside_the_circle_are_answered(circles: Running) -> None:
    assert said(circles, "both") == [["slow"], circle("both")]


def test_levels_for_which_there_are_instances_are_none(others: Running) -> None:
    assert said(others, "levels", 2) == ["bottom"]


def test_waiting_long_is_none(others: Running) -> None:
    assert said(others, "many") == [[2 * n] for n in range(5)]


def test_a_model_that_does_not_wait_for_its_own_call_is_answered(others: Running) -> None:
    assert said(others, "forgets", 1) == ["asked"]
    assert said(others, "forgets", 0)[0] in (None, False)


@pytest.mark.parametrize(("name", "text"), [("gives_up", "given up"), ("thread", "woken")])
def test_a_model_that_can_continue_is_no_circle(others: Running, name: str, text: str) -> None:
    assert said(others, name) == [text]


def test_many_clients_at_once_get_answers_or_the_reason(circles: Running) -> None:
    found: list[Any] = []

    def ask(name: str) -> None:
        found.append(innermost(said(circles, name, 9)))

    threads = [threading.Thread(target=ask, args=(name,)) for name in ("a", "b", "c", "mixed", "plain", "alone") * 3]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == len(threads)
    assert set(found) <= {circle(name) for name in ("a", "b", "c", "mixed", "plain", "alone")}
