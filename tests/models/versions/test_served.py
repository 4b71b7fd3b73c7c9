"""A served version and its stand-in."""

from __future__ import annotations

from edge_serve.config.model.model_config_pb2 import ModelConfig
from edge_serve.messages.signature import Signature
from edge_serve.models.control.swap_queue import SwapQueue
from edge_serve.models.run.statistics import new_statistics
from edge_serve.models.versions.served import Served


def test_a_stand_in_closes_nothing_of_the_version_that_it_stands_for() -> None:
    closed: list[str] = []
    signature = Signature("m", "1", "", 0, {}, {})
    runner, statistics = SwapQueue("m", 1), new_statistics()
    served = Served("m", "1", ModelConfig(name="m"), signature, runner, statistics, None, None, 0.0, lambda _: None)
    served.on_close = (lambda: closed.append("m"),)
    stand_in = served.stand_in(SwapQueue("m", 1))
    for version in (served, stand_in):
        for close in version.on_close:
            close()
    assert closed == ["m"]
