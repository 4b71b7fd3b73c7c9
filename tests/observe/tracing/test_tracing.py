"""The server's setting and those of models, changed while it runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edge_serve.errors import InvalidArgument
from edge_serve.messages.infer import InferRequest, InferResponse
from edge_serve.messages.settings import TraceChanges, TraceSettings
from edge_serve.messages.tensors import DataType, InferTensor
from edge_serve.messages.trace import Arrival, Trace
from edge_serve.observe.tracing.tracing import Tracing
from tests.observe.tracing.recorder import Steps

EVERY = TraceChanges(level=("TIMESTAMPS",), rate=1)


def tracing(file: Path | str = "t", *, rate: int = 1000) -> Tracing:
    return Tracing(TraceSettings(rate=rate, file=str(file)))


def test_tracing_is_off_until_a_setting_enables_it() -> None:
    here = tracing()
    assert not here.on
    here.update("m", EVERY)
    assert here.on
    here.update("m", TraceChanges(level=()))
    assert not here.on
    here.update("", EVERY)
    assert here.on


def test_tracing_is_on_from_the_start_if_configured() -> None:
    assert Tracing(TraceSettings(("TENSORS",), file="t")).on
    assert not Tracing(TraceSettings(("TENSORS",))).on


def test_models_follow_the_server_where_they_have_no_setting_of_their_own() -> None:
    here = tracing()
    here.update("m", TraceChanges(rate=5))
    here.update("", TraceChanges(level=("TENSORS",), rate=9, count=4))

    assert (here.settings("m").level, here.settings("m").rate, here.settings("m").count) == (("TENSORS",), 5, 4)
    assert here.settings("other") == here.settings()
    assert here.settings().rate == 9


def test_a_model_whose_fields_are_all_cleared_is_the_servers_again() -> None:
    here = tracing()
    here.update("m", EVERY)
    here.update("m", TraceChanges(cleared=frozenset({"level", "rate"})))
    here.update("", TraceChanges(level=("TIMESTAMPS",), rate=2))

    assert here.settings("m") == here.settings()
    assert here.sample("m") is None
    assert here.sample("other") is not None, "both count in the server's setting"


def test_cleared_global_members_return_to_their_initial_values() -> None:
    here = tracing(rate=77)
    here.update("", TraceChanges(rate=5))
    here.update("", TraceChanges(cleared=frozenset({"rate"})))

    assert here.settings().rate == 77


def test_nothing_changes_when_a_change_is_refused() -> None:
    here = tracing()
    here.update("m", EVERY)
    before = here.settings(), here.settings("m")

    with pytest.raises(InvalidArgument):
        here.update("m", TraceChanges(rate=0))
    with pytest.raises(InvalidArgument):
        here.update("", TraceChanges(level=("TIMESTAMPS",), rate=0))

    assert (here.settings(), here.settings("m")) == before


def test_a_server_setting_that_would_break_a_models_is_refused() -> None:
    here = tracing()
    here.update("m", TraceChanges(level=("TIMESTAMPS",)))

    with pytest.raises(InvalidArgument, match="sample rate must be non-zero"):
        here.update("", TraceChanges(rate=0))
    assert here.settings("m").rate == 1000


def test_a_used_up_count_of_a_model_refuses_no_change_of_the_servers_setting() -> None:
    here = tracing()
    here.update("m", TraceChanges(level=("TIMESTAMPS",), rate=1, count=1))
    assert here.sample("m") is not None

    here.update("", TraceChanges(level=("TIMESTAMPS",), rate=2))

    assert (here.settings().rate, here.settings("m").rate, here.settings("m").count) == (2, 1, 0)
    assert here.sample("m") is None
    with pytest.raises(InvalidArgument):
        here.update("m", TraceChanges(rate=3))


def test_traces_are_numbered_and_keep_what_their_level_asks_for() -> None:
    here = tracing()
    here.update("", EVERY)
    here.update("t", TraceChanges(level=("TENSORS",)))

    first, second = here.sample("m"), here.sample("t")

    assert first is not None
    assert second is not None
    assert (first.id, second.id) == (1, 2)
    assert (first.timestamps, first.tensors) == ([], None)
    assert (second.timestamps, second.tensors) == (None, [])


def ask(here: Tracing, model: str = "m") -> None:
    """A request comes and is answered."""
    here.watch(InferRequest(model), model, "4", lambda response: None)(InferResponse(model, "4"))


def test_a_change_writes_what_was_kept(tmp_path: Path) -> None:
    here = tracing(tmp_path / "t.json")
    here.update("", TraceChanges(level=("TIMESTAMPS",), rate=1, log_frequency=10))
    ask(here)
    here.update("", TraceChanges(log_frequency=9))
    ask(here)
    here.close()

    assert {path.name: names_of_models(path) for path in tmp_path.iterdir()} == {"t.json.0": "m", "t.json.1": "m"}


def test_settings_of_models_do_not_share_a_file(tmp_path: Path) -> None:
    here = tracing(tmp_path / "t.json")
    here.update("a", TraceChanges(level=("TIMESTAMPS",), rate=1, log_frequency=5))
    here.update("b", TraceChanges(level=("TIMESTAMPS",), rate=1, log_frequency=3))
    here.update("c", TraceChanges(level=("TIMESTAMPS",), rate=1, count=2))
    for model in "aaaab" + "cab" * 6:
        ask(here, model)
    here.close()

    found = {path.name: names_of_models(path) for path in sorted(tmp_path.iterdir())}
    assert found == {
        "t.json.0": "aaaaa",
        "t.json.1": "cc",
        "t.json.2": "bbb",
        "t.json.3": "bbb",
        "t.json.4": "aaaaa",
        "t.json.5": "b",
    }


def test_a_change_of_one_models_setting_leaves_the_batches_of_others_alone(tmp_path: Path) -> None:
    here = tracing(tmp_path / "t.json")
    here.update("", TraceChanges(level=("TIMESTAMPS",), rate=1, count=10))
    for number in range(12):
        if number == 5:
            here.update("other", TraceChanges(level=()))
        ask(here)
    here.close()

    assert {path.name: names_of_models(path) for path in tmp_path.iterdir()} == {"t.json.0": "m" * 10}


def names_of_models(path: Path) -> str:
    """Return the models of the traces in a file, in their order."""
    return "".join(entry["model_name"] for entry in told(path) if "model_name" in entry)


def test_a_change_of_the_servers_setting_leaves_a_model_alone_that_sets_all_itself(tmp_path: Path) -> None:
    here = tracing(tmp_path / "t.json")
    here.update("m", TraceChanges(level=("TIMESTAMPS",), rate=2, count=9, log_frequency=3))
    traced = []
    for number in range(6):
        trace = here.sample("m")
        if trace is not None:
            traced.append(number)
            trace.model_name, trace.model_version = "m", "4"
            trace.close()
        here.update("", TraceChanges(rate=100 + number))
    here.close()

    assert traced == [1, 3, 5]
    assert {path.name: names_of_models(path) for path in tmp_path.iterdir()} == {"t.json.0": "mmm"}


def test_the_servers_setting_sent_again_writes_what_models_that_follow_it_have_kept(tmp_path: Path) -> None:
    here = tracing(tmp_path / "t.json")
    here.update("", TraceChanges(level=("TIMESTAMPS",), rate=1, log_frequency=10))
    here.update("m", TraceChanges(rate=1))
    ask(here)
    here.update("", TraceChanges(log_frequency=10))
    ask(here)
    here.close()

    assert {path.name: names_of_models(path) for path in tmp_path.iterdir()} == {"t.json.0": "m", "t.json.1": "m"}


def test_the_last_of_a_count_completes_a_numbered_file(tmp_path: Path) -> None:
    here = tracing(tmp_path / "t.json")
    here.update("", TraceChanges(level=("TIMESTAMPS",), rate=1, count=2))
    first, second = InferRequest("m"), InferRequest("m")
    tell_first = here.watch(first, "m", "4", lambda response: None)
    here.watch(second, "m", "4", lambda response: None)(InferResponse("m", "4"))
    ask(here)
    assert not list(tmp_path.iterdir()), "the first is under way"
    tell_first(InferResponse("m", "4"))
    here.close()

    assert {entry["id"] for entry in told(tmp_path / "t.json.0")} == {1, 2}
    assert not (tmp_path / "t.json").exists()


def test_traces_that_end_after_their_setting_are_written_with_its_last_ones(tmp_path: Path) -> None:
    here = tracing(tmp_path / "t.json")
    here.update("", TraceChanges(level=("TIMESTAMPS",), rate=1, log_frequency=10))
    tell = here.watch(InferRequest("m"), "m", "4", lambda response: None)
    here.update("", TraceChanges(level=()))
    assert not list(tmp_path.iterdir())
    tell(InferResponse("m", "4"))
    here.close()

    assert [entry.name for entry in tmp_path.iterdir()] == ["t.json.0"]


def test_doors_are_notified_when_tracing_starts_and_stops() -> None:
    here, heard = tracing(), list[bool]()
    here.subscribe(heard.append)
    here.update("m", EVERY)
    here.update("", EVERY)
    here.update("m", TraceChanges(level=()))
    here.update("", TraceChanges(level=()))

    assert heard == [False, True, False]


# ---- a request on its way -----------------------------------------------------------------------------------------


def told(path: Path) -> list[Any]:
    entries: list[Any] = json.loads(path.read_text())
    return entries


def names(path: Path) -> list[tuple[str, int]]:
    return [(stamp["name"], stamp["ns"]) for entry in told(path) for stamp in entry.get("timestamps", ())]


def test_a_requests_way_in_order(tmp_path: Path) -> None:
    here = Tracing(TraceSettings(("TIMESTAMPS",), 1, file=str(tmp_path / "t")), Steps())
    request, heard = InferRequest("m", id="r"), list[InferResponse]()
    tell = here.watch(request, "m", "3", heard.append)
    assert request.compute is not None
    request.compute.add(10, 20, 30, 40)
    response = InferResponse("m", "3")
    tell(response)
    here.close()

    assert heard == [response]
    assert told(tmp_path / "t")[0] == {"id": 1, "model_name": "m", "model_version": 3, "request_id": "r"}
    assert names(tmp_path / "t") == [
        ("REQUEST_START", 1),
        ("QUEUE_START", 1),
        ("COMPUTE_START", 10),
        ("COMPUTE_INPUT_END", 20),
        ("COMPUTE_OUTPUT_START", 30),
        ("COMPUTE_END", 40),
        ("INFER_RESPONSE_COMPLETE", 2),
        ("REQUEST_END", 3),
    ]


def test_a_stream_is_written_at_its_end_and_nothing_is_added_then(tmp_path: Path) -> None:
    here = Tracing(TraceSettings(("TIMESTAMPS",), 1, file=str(tmp_path / "t")), Steps())
    request = InferRequest("m")
    tell = here.watch(request, "m", "3", lambda response: None)
    for _ in range(2):
        tell(InferResponse("m", "3", final=False))
    tell(InferResponse("m", "3", null=True))
    assert isinstance(request.compute, Trace)
    before = list(request.compute.timestamps or ())
    request.compute.add(10, 20, 30, 40)
    assert request.compute.timestamps == before, "it may be on its way to the file"
    here.close()

    assert [name for name, _ in names(tmp_path / "t")] == [
        "REQUEST_START",
        "QUEUE_START",
        "INFER_RESPONSE_COMPLETE",
        "INFER_RESPONSE_COMPLETE",
        "INFER_RESPONSE_COMPLETE",
        "REQUEST_END",
    ]


def test_with_a_door_it_ends_when_the_answer_is_sent(tmp_path: Path) -> None:
    here = Tracing(TraceSettings(("TIMESTAMPS",), 1, file=str(tmp_path / "t")), Steps())
    arrival, sent = Arrival([("HTTP_RECV_START", -2), ("HTTP_RECV_END", -1)]), list[Callable[[], None]]()
    answer = here.watch(InferRequest("m"), "m", "3", lambda response: sent.append(arrival.sending()), arrival)
    answer(InferResponse("m", "3"))
    assert not (tmp_path / "t").exists()
    sent.pop()()
    arrival.release()
    arrival.mark("LATE")
    here.close()

    assert [name for name, _ in names(tmp_path / "t")] == [
        "HTTP_RECV_START",
        "HTTP_RECV_END",
        "REQUEST_START",
        "QUEUE_START",
        "INFER_RESPONSE_COMPLETE",
        "REQUEST_END",
        "HTTP_SEND_START",
        "HTTP_SEND_END",
    ]


def test_times_of_a_grpc_door_are_written_last(tmp_path: Path) -> None:
    here = Tracing(TraceSettings(("TIMESTAMPS",), 1, file=str(tmp_path / "t")), Steps())
    arrival = Arrival([("GRPC_WAITREAD_END", 0)], late=True, streams=True)
    heard = list[InferResponse]()
    tell = here.watch(InferRequest("m"), "m", "3", heard.append, arrival)
    for response in (InferResponse("m", "3", final=False), InferResponse("m", "3", null=True)):
        tell(response)
    here.close()

    assert len(heard) == 2
    assert [name for name, _ in names(tmp_path / "t")] == [
        "REQUEST_START",
        "QUEUE_START",
        "REQUEST_END",
        "GRPC_WAITREAD_END",
        "INFER_RESPONSE_COMPLETE",
        "GRPC_SEND_START",
        "GRPC_SEND_END",
    ]


def test_door_times_of_an_untraced_request_are_discarded() -> None:
    here = tracing(rate=2)
    here.update("", TraceChanges(level=("TIMESTAMPS",)))
    arrival = Arrival(())
    here.watch(InferRequest("m"), "m", "3", lambda response: None, arrival)

    arrival.mark("HTTP_SEND_START")
    arrival.release()


def test_tensors_are_kept_as_they_were(tmp_path: Path) -> None:
    here = Tracing(TraceSettings(("TENSORS",), 1, file=str(tmp_path / "t")))
    memory = bytearray(b"\1\2")
    request = InferRequest("m", inputs=[InferTensor("X", DataType.INT8, (2,), memory)])
    tell = here.watch(request, "m", "3", lambda response: None)
    memory[:] = b"\7\7"
    wrong = InferTensor("W", DataType.INT8, (3,), b"")
    tell(InferResponse("m", "3", outputs=[InferTensor("Y", DataType.INT8, (1,), b"\5")], final=False))
    tell(InferResponse("m", "3", outputs=[wrong]))
    here.close()

    assert [
        (entry["activity"], entry["tensor"]["name"], entry["tensor"]["data"]) for entry in told(tmp_path / "t")[1:]
    ] == [
        ("TENSOR_QUEUE_INPUT", "X", "1,2"),
        ("TENSOR_BACKEND_OUTPUT", "Y", "5"),
    ]


def test_a_request_whose_turn_it_is_not_is_left_alone() -> None:
    here = tracing(rate=2)
    here.update("", TraceChanges(level=("TIMESTAMPS",)))
    request, heard = InferRequest("m"), list[InferResponse]()
    on_response = heard.append

    assert here.watch(request, "m", "3", on_response) is on_response
    assert request.compute is None


def test_unfinished_traces_are_written_at_the_end(tmp_path: Path) -> None:
    here = Tracing(TraceSettings(("TIMESTAMPS",), 1, file=str(tmp_path / "t")), Steps())
    tell = here.watch(InferRequest("m"), "m", "3", lambda response: None)
    here.close()
    tell(InferResponse("m", "3"))

    assert [name for name, _ in names(tmp_path / "t")] == ["REQUEST_START", "QUEUE_START"]
