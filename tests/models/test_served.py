"""A served version and its stand-in."""

from __future__ import annotations

from edge_serve.config.model_config_pb2 import ModelConfig
from edge_serve.messages.signature import Signature
from edge_serve.models.served import Served
from edge_serve.models.statistics import new_statistics
from edge_serve.models.waiting import WaitingRoom
from tests.models.test_waiting import Target


def test_a_stand_in_closes_nothing_of_the_version_that_it_stands_for() -> None:
    closed: list[str] = []
    signature = Signature("m", "1", "", 0, {}, {})
    served = Served(
        "m", "1", ModelConfig(name="m"), signature, Target(), new_statistics(), None, None, 0.0, lambda request: None,
        on_close=(lambda: closed.append("m"),),
    )  # fmt: skip
    stand_in = served.stand_in(WaitingRoom("m", 1))
    for version in (served, stand_in):
        for close in version.on_close:
            close()
    assert closed == ["m"]
