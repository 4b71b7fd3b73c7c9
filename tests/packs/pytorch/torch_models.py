"""Small models of torch for the tests: modules, and how they become files."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.packs.pytorch.environment import VENV, need_torch

need_torch()

import torch  # noqa: E402
from torch import nn  # noqa: E402


class AddSub(nn.Module):
    """Triton's libtorch_float32_float32_float32 and its like."""

    def forward(self, INPUT0: torch.Tensor, INPUT1: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # noqa: N803
        return INPUT0 - INPUT1, INPUT0 + INPUT1


class Bump(nn.Module):
    """Computes in its input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x += 1
        return x * 10


class Keyed(nn.Module):
    """One dictionary as input."""

    def forward(self, given: dict[str, torch.Tensor]) -> torch.Tensor:
        return given["left"] * 10 + given["right"]


class KeyedOptional(nn.Module):
    """Adds `more` where it is given."""

    def forward(self, given: dict[str, torch.Tensor]) -> torch.Tensor:
        return given["x"] + given["more"] if "more" in given else given["x"]


class NoForward(nn.Module):
    """Has another method only."""

    @torch.jit.export  # type: ignore[untyped-decorator]
    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return x


class KeyedResult(nn.Module):
    """A dictionary as output."""

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"twice": x * 2, "half": x / 2}


class ListResult(nn.Module):
    """A list of tensors as output."""

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [x, x + 1]


class Texts(nn.Module):
    """Lists of strings beside tensors."""

    def forward(self, texts: list[str], n: torch.Tensor) -> tuple[list[str], torch.Tensor]:
        return [text + "!" for text in texts], n + len(texts)


class Cut(nn.Module):
    """Cuts strings, also in the middle of a character."""

    def forward(self, texts: list[str]) -> list[str]:
        return [text[:1] for text in texts]


class Running(nn.Module):
    """Triton's libtorch_sequence models with implicit state: a running sum."""

    def forward(
        self, data: torch.Tensor, kept: torch.Tensor, start: torch.Tensor, ready: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        result = torch.mul(torch.logical_and(ready, torch.logical_not(start)), kept)
        result += data
        return result, result


class Writing(nn.Module):
    """Writes into its input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x += 1
        return x


class Rows(nn.Module):
    """Returns a row less than it gets."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[1:]


class Scalar(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum()


class Number(nn.Module):
    def forward(self, x: torch.Tensor) -> int:
        return int(x.dim())


class Refusing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 100:
            raise ValueError("too much")
        return x


class Quoting(nn.Module):
    """Quotes its input in the text of an error."""

    def forward(self, texts: list[str]) -> list[str]:
        raise ValueError(texts[0])


class KeyedNumber(nn.Module):
    """A dictionary of numbers as output."""

    def forward(self, x: torch.Tensor) -> dict[str, int]:
        return {"count": x.dim()}


class OrNothing(nn.Module):
    """A result that is no tensor beside one."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        return x + 1, None


class Identity(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class Negative(nn.Module):
    """Returns a view with the negative bit."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch._neg_view(x)


class Times(nn.Module):
    """Multiplies."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


class Network(nn.Module):
    """A small convolutional network for images of any size."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU(),
            nn.Conv2d(channels, channels, 3, stride=2, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        )  # fmt: skip
        self.head = nn.Linear(channels, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x).flatten(1))


class Complex(nn.Module):
    """Triton's torch_aoti_complex."""

    def forward(self, hdata: torch.Tensor, vdata: torch.Tensor, options: dict[str, torch.Tensor]) -> dict[str, Any]:
        return {"AAA": hdata + vdata, "ZZZ": hdata - vdata, "BBB": (hdata, vdata), "CCC": options}


def save_script(module: nn.Module, path: Path, *example: torch.Tensor) -> Path:
    """Write a script, traced with an example if there is one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = torch.jit.trace(module, example) if example else torch.jit.script(module)
        made.save(str(path))
    return path


def exported(module: nn.Module, example: Sequence[Any], **more: Any) -> Any:
    """Return an exported program."""
    return torch.export.export(module.eval(), tuple(example), **more)


def save_exported(module: nn.Module, path: Path, example: Sequence[Any], **more: Any) -> Path:
    """Write an exported program."""
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.export.save(exported(module, example, **more), path)
    return path


def save_compiled(module: nn.Module, path: Path, example: Sequence[Any], **more: Any) -> Path:
    """Write a package of AOTInductor, which calls a C++ compiler."""
    path.parent.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(VENV.parent / "inductor"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch._inductor.aoti_compile_and_package(exported(module, example, **more), package_path=str(path))
    return path
