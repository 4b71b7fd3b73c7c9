"""Samples in the README and in docs/ do what they show.

A fenced block whose first line is ```bash sample or ```python sample is run from the root of the checkout, against a
server of model_repository/. When the next block is ```text, that is what it must print, with `...` for anything at all.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.server.running import Running, running

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^```(.*)\n((?:.*\n)*?)^```$", re.MULTILINE)
MAGIKA = ROOT / "model_repository/magika/1/model.onnx"
#: what the page about shared memory begins with
SHM = "--allow-client-shm=true"
#: what `make serve` waits for
QUICKSTART = ("simple", "simple_identity", "simple_int8", "simple_string")


@dataclass(frozen=True)
class Sample:
    """A block that is run; `output` is what follows it, if anything is shown."""

    page: str
    line: int
    language: str
    code: str
    output: str | None

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def samples_in(page: str, text: str) -> Iterator[Sample]:
    """The samples of a page, in order."""
    blocks = [(match.start(), match[1].strip(), match[2]) for match in _FENCE.finditer(text)]
    for (start, info, code), (_, follows, shown) in zip(blocks, [*blocks, (0, "", "")][1:], strict=True):
        language, _, mark = info.partition(" ")
        if mark == "sample":
            line = text.count("\n", 0, start) + 1
            yield Sample(page, line, language, code, shown if follows == "text" else None)


def all_samples() -> list[Sample]:
    """Of the README and of every page below docs/."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [found for page in pages for found in samples_in(str(page.relative_to(ROOT)), page.read_text())]


def as_shown(shown: str, printed: str) -> bool:
    """Whether `printed` is what a page shows, blanks at the ends of lines aside."""
    wanted, got = ("\n".join(line.rstrip() for line in text.strip().splitlines()) for text in (shown, printed))
    return re.fullmatch(".*?".join(map(re.escape, wanted.split("..."))), got, re.DOTALL) is not None


def run(sample: Sample, server: Running) -> str:
    """What the sample prints, standard error included.

    Raises:
        AssertionError: it fails.
    """
    code = sample.code.replace("localhost:8000", server.url).replace("localhost:8002", f"127.0.0.1:{server.metrics}")
    commands = {"bash": ["bash", "-euo", "pipefail", "-c", code], "python": [sys.executable, "-c", code]}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        commands[sample.language], cwd=ROOT, env={**os.environ, "PATH": path}, text=True, timeout=50,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, f"{sample} ended with status {done.returncode}:\n{done.stdout}"
    return done.stdout


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    """The demo repository, as `make serve` serves it, but for SHM."""
    required = [f"--required-model={name}" for name in QUICKSTART]
    with running(f"--model-repository={ROOT / 'model_repository'}", "--exit-on-error=false", SHM, *required) as started:
        yield started


@pytest.mark.parametrize("sample", all_samples(), ids=str)
def test_sample_prints_what_the_page_shows(sample: Sample, server: Running) -> None:
    if "magika" in sample.code and not MAGIKA.exists():
        pytest.skip("make models has not been run")

    printed = run(sample, server)

    assert sample.output is None or as_shown(sample.output, printed), f"{sample} printed:\n{printed}"


def test_the_readme_has_samples() -> None:
    languages = {sample.language for sample in all_samples() if sample.page == "README.md"}

    assert languages == {"bash", "python"}


def test_samples_are_found_with_their_output() -> None:
    text = (
        "a\n```bash sample\necho 1\n```\nsays\n```text\n1\n```\n```bash\nnot me\n```\n```python sample\nprint()\n```\n"
    )

    assert list(samples_in("p", text)) == [
        Sample("p", 2, "bash", "echo 1\n", "1\n"),
        Sample("p", 12, "python", "print()\n", None),
    ]


def test_output_is_compared() -> None:
    assert as_shown("a ... c\n", "a b c")
    assert not as_shown("a ... c\n", "a b d")
    assert not as_shown("a.c", "abc")
