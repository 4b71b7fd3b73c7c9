"""Which versions are served."""

from __future__ import annotations

import pytest

from edge_serve.config.model.text import parse_model_config
from edge_serve.models.repository.version_policy import choose


@pytest.mark.parametrize(
    ("policy", "chosen"),
    [
        ("version_policy { latest { num_versions: 2 } }", [3, 10]),
        ("version_policy { latest { num_versions: 9 } }", [1, 3, 10]),
        ("version_policy { latest { } }", []),
        ("version_policy { latest { num_versions: 0 } }", []),
        ("version_policy { }", [1, 3, 10]),
        ("version_policy { all { } }", [1, 3, 10]),
        ("version_policy { specific { versions: [3, 1, 7, 3] } }", [1, 3]),
        ("version_policy { specific { versions: [7] } }", []),
    ],
)
def test_choose(policy: str, chosen: list[int]) -> None:
    assert chosen == choose(parse_model_config(policy).version_policy, [3, 10, 1])
