"""The agent's settings: values that are refused, and paths."""

from __future__ import annotations

from pathlib import Path

import pytest

from ota.errors import UsageError
from ota.settings import AgentSettings, read_settings


@pytest.mark.parametrize(("name", "text"), [("tries", "0"), ("most_slower", "0.99"), ("most_slower", "0")])
def test_a_limit_with_which_no_release_becomes_good_is_refused(name: str, text: str) -> None:
    with pytest.raises(
        UsageError, match=f"^--{name.replace('_', '-')}: found '{text}', expected a number of at least 1"
    ):
        read_settings({name: text}, {}, Path("/dev/null"))
    assert read_settings({name: "1"}, {}, Path("/dev/null")) != AgentSettings()


def test_a_number_below_zero_is_refused() -> None:
    with pytest.raises(UsageError, match="expected a number of at least 0"):
        read_settings({"quota": "-1"}, {}, Path("/dev/null"))


def test_a_relative_path_starts_at_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link in the model repository to a relative path would lead nowhere."""
    monkeypatch.chdir(tmp_path)
    found = read_settings({"state_dir": "state"}, {"EDGE_OTA_MODEL_REPOSITORY": "models"}, Path("/dev/null"))
    monkeypatch.chdir("/")
    assert (found.state_dir, found.model_repository) == (tmp_path / "state", tmp_path / "models")
