"""Questions of models to the repository. tests/server/test_bls.py tests how their calls run."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from edge_serve.errors import EdgeServeError, InvalidArgument, NotFound, Unavailable
from edge_serve.models.extras.calls import ModelCalls
from edge_serve.models.versions.served import Served

Done = Callable[["EdgeServeError | None"], None]


class FakeRepository:
    """Remembers what it was asked; nothing can be done to `stuck`."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []

    def load_model(self, name: str, parameters: Mapping[str, Any], done: Done, *, nested: bool) -> None:
        self.asked.append(("nested load" if nested else "load", name, dict(parameters)))
        done(Unavailable("stuck") if name == "stuck" else None)

    def start_unload(self, name: str, unload_dependents: bool, done: Done) -> None:
        self.asked.append(("unload", name, unload_dependents))
        done(Unavailable("stuck") if name == "stuck" else None)

    def model_ready(self, name: str, version: str) -> bool:
        if name == "missing":
            raise NotFound("missing")
        if name == "loading":
            raise Unavailable("not yet")
        if version == "x":
            raise InvalidArgument("no number")
        return name == "good"


def nobody(name: str, version: str, correlation_id: int | str = 0, flags: int = 0) -> Served:
    """Nothing serves."""
    raise NotFound(name)


def control(
    question: Mapping[str, Any], loading: bool = False
) -> tuple[dict[str, Any] | EdgeServeError, list[tuple[Any, ...]]]:
    """The only answer to a question, and what the repository was asked."""

    async def ask() -> tuple[dict[str, Any] | EdgeServeError, list[tuple[Any, ...]]]:
        repository = FakeRepository()
        answers: list[dict[str, Any] | EdgeServeError] = []
        ModelCalls(nobody, repository).control(question, answers.append, loading)
        (answer,) = answers
        return answer, repository.asked

    return asyncio.run(ask())


def test_a_model_is_loaded_with_its_files() -> None:
    files = {"file:1/model.py": b64encode(b"\x00code").decode()}
    question = {"do": "load_model", "model_name": "m", "config": "{}", "files": files}
    assert control(question) == ({}, [("load", "m", {"config": "{}", "file:1/model.py": b"\x00code"})])
    assert control({**question, "config": "", "files": {}}) == ({}, [("load", "m", {})])
    assert control({**question, "config": "", "files": {}}, loading=True) == ({}, [("nested load", "m", {})])


@pytest.mark.parametrize("dependents", [True, False])
def test_a_model_is_unloaded(dependents: bool) -> None:
    question = {"do": "unload_model", "model_name": "m", "unload_dependents": dependents}
    assert control(question) == ({}, [("unload", "m", dependents)])


@pytest.mark.parametrize(
    "question",
    [
        {"do": "load_model", "model_name": "stuck", "config": "", "files": {}},
        {"do": "unload_model", "model_name": "stuck", "unload_dependents": False},
    ],
)
def test_an_operation_that_fails_returns_its_error(question: dict[str, Any]) -> None:
    answer, _ = control(question)
    assert isinstance(answer, Unavailable)


@pytest.mark.parametrize(("name", "ready"), [("good", True), ("bad", False), ("missing", False), ("loading", False)])
def test_readiness_is_never_an_error_for_a_model(name: str, ready: bool) -> None:
    assert control({"do": "is_model_ready", "model_name": name, "version": ""})[0] == {"ready": ready}


@pytest.mark.parametrize(
    "question",
    [
        {"do": "dance", "model_name": "m"},
        {"do": "load_model"},
        {"model_name": "m"},
        {"do": "load_model", "model_name": "m", "config": "", "files": {"a": 5}},
        {"do": "load_model", "model_name": "m", "config": "", "files": 5},
        {"do": "unload_model", "model_name": "m"},
        {"do": "is_model_ready", "model_name": "good", "version": "x"},
    ],
)
def test_malformed_questions_are_refused(question: dict[str, Any]) -> None:
    answer, asked = control(question)
    assert isinstance(answer, InvalidArgument)
    assert asked == []
