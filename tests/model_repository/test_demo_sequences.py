"""The demo model whose sequences are called by strings: one with a bad name spoils nothing for the others."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from edge_serve import AsyncSession, Server
from edge_serve.errors import EdgeServeError

REPOSITORY = Path(__file__).parents[2] / "model_repository"
MODEL = "simple_string_dyna_sequence"


@pytest.mark.parametrize("bad", ["engine-7", "99999999999999999999"])
def test_a_sequence_whose_id_is_no_number_fails_alone(bad: str) -> None:
    async def total(server: AsyncSession, id: str) -> int | str:
        try:
            outputs = await server.infer(
                MODEL, {"INPUT": [[5]]}, sequence_id=id, sequence_start=True, sequence_end=True
            )
        except EdgeServeError as error:
            return error.message
        return int(outputs["OUTPUT"].item())

    async def main() -> None:
        async with Server(REPOSITORY, load_model=[MODEL]) as server:
            one, refused, two, four = await asyncio.gather(*(total(server, id) for id in ("1", bad, "2", "4")))
            assert (one, two, four) == (6, 7, 9)
            assert str(refused).startswith("sequence id: ")

    asyncio.run(main())
