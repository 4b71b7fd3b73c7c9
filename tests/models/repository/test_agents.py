"""The checksum agent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edge_serve.config.model.model_config_pb2 import ModelConfig
from edge_serve.errors import InvalidArgument, Unsupported
from edge_serve.models.repository.agents import run_agents

#: md5sum of "weights\n"
WEIGHTS = "fad624b28208abf62b4d0db65c04757b"


def config(key: str, value: str, name: str = "checksum") -> ModelConfig:
    made = ModelConfig()
    made.model_repository_agents.agents.add(name=name).parameters[key] = value
    return made


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "weights").write_text("weights\n")
    os.mkfifo(tmp_path / "1" / "pipe")
    return tmp_path


def test_files_with_the_right_sum_pass(directory: Path) -> None:
    run_agents(config("MD5:1/weights", WEIGHTS), directory)
    run_agents(config("md5:1/weights", WEIGHTS), directory)
    run_agents(ModelConfig(), directory)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("MD5:1/weights", f"Mismatched MD5 hash for file 1/weights, expect: 0, got: {WEIGHTS}"),
        ("MD5:1/absent", "failed to open text file for read 1/absent: No such file or directory"),
        ("MD5:1", "failed to open text file for read 1: not a file"),
        ("MD5:1/pipe", "failed to open text file for read 1/pipe: not a file"),
        ("MD5:\x00", r"failed to open text file for read '\x00': no file has such a name"),
        ("1/weights", "failed to parse key: 1/weights"),
    ],
)
def test_other_errors_have_tritons_text(directory: Path, key: str, text: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        run_agents(config(key, "0"), directory)
    assert refused.value.message == text


@pytest.mark.parametrize("path", ["{outside}", "../{name}/secret", "1/../../{name}/secret", "..", "/"])
def test_a_file_outside_the_model_is_not_read(tmp_path_factory: pytest.TempPathFactory, path: str) -> None:
    """A client that may load models learned its digest, or that there is none, by a configuration of its own."""
    directory, other = tmp_path_factory.mktemp("model"), tmp_path_factory.mktemp("other")
    (other / "secret").write_text("weights\n")
    named = path.format(outside=other / "secret", name=other.name)
    text = f"failed to open text file for read {named}: it is outside the directory of the model: put it there"
    for expected in (WEIGHTS, "0"):
        with pytest.raises(InvalidArgument) as refused:
            run_agents(config(f"MD5:{named}", expected), directory)
        assert refused.value.message == text


def test_a_link_in_the_model_is_followed(directory: Path) -> None:
    (directory / "link").symlink_to(directory / "1" / "weights")
    run_agents(config("MD5:1/../link", WEIGHTS), directory)


def test_other_sums_are_not_known(directory: Path) -> None:
    with pytest.raises(Unsupported, match=r"^Unsupported checksum algorithm: SHA256$"):
        run_agents(config("SHA256:1/weights", "0"), directory)


def test_other_agents_are_not_known(directory: Path) -> None:
    with pytest.raises(InvalidArgument, match="'decrypt'"):
        run_agents(config("key", "value", "decrypt"), directory)
