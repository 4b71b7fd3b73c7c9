"""KServe's own clients (`kserve` from PyPI) against a server, plain and behind TLS with tokens.

Skipped where kserve is not installed: `pip install --group kserve` (docs/adr/0009-test-dependencies.md).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.server.running import Running, python_model, running
from tests.server.secured import Keys

kserve = pytest.importorskip("kserve")

BATCH = np.arange(16, dtype=np.int32).reshape(1, 16)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys.made(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module", params=["plain", "secured"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, keys: Keys) -> Iterator[Running]:
    root = tmp_path_factory.mktemp("models")
    python_model(root, "m")
    flags = [f"--model-repository={root}", "--allow-grpc=true", "--grpc-port=0", "--http-health-json=true"]
    if request.param == "secured":
        flags += [*keys.flags, *keys.grpc_flags]
    with running(*flags) as started:
        started.secured = request.param == "secured"  # type: ignore[attr-defined]  # read below
        yield started


def is_secured(server: Running) -> bool:
    return bool(getattr(server, "secured", False))


def headers(server: Running, keys: Keys) -> dict[str, str]:
    return {"authorization": f"Bearer {keys.tokens['infer']}"} if is_secured(server) else {}


def question(*, binary: bool) -> Any:
    inputs = []
    for name, values in (("INPUT0", BATCH), ("INPUT1", np.ones_like(BATCH))):
        made = kserve.InferInput(name, list(values.shape), "INT32")
        made.set_data_from_numpy(values, binary_data=binary)
        inputs.append(made)
    return kserve.InferRequest(model_name="m", infer_inputs=inputs, request_id="r")


def check(answer: Any) -> None:
    outputs = {output.name: output.as_numpy() for output in answer.outputs}
    np.testing.assert_array_equal(outputs["OUTPUT0"], BATCH + 1)
    np.testing.assert_array_equal(outputs["OUTPUT1"], BATCH - 1)
    assert answer.model_name == "m"
    assert answer.id == "r"


@pytest.mark.parametrize("binary", [True, False])
def test_rest(server: Running, keys: Keys, binary: bool) -> None:
    async def main() -> None:
        verify: Any = keys.authority.client() if is_secured(server) else True
        config = kserve.inference_client.RESTConfig(protocol="v2", verify=verify)
        base = f"{'https' if is_secured(server) else 'http'}://localhost:{server.http}"
        async with kserve.InferenceRESTClient(config) as client:
            more = headers(server, keys)
            assert await client.is_server_live(base, headers=more)
            assert await client.is_server_ready(base, headers=more)
            assert await client.is_model_ready(base, "m", headers=more)
            check(await client.infer(base, question(binary=binary), model_name="m", headers=more))

    asyncio.run(main())


@pytest.mark.parametrize("binary", [True, False])
def test_grpc(server: Running, keys: Keys, binary: bool, tmp_path: Path) -> None:
    found = re.search(r"gRPC on 127\.0\.0\.1:(\d+)", server.log())
    assert found is not None
    url = f"localhost:{found[1]}"

    async def main() -> None:
        more = list(headers(server, keys).items())
        root = str(keys.authority.root) if is_secured(server) else None
        async with kserve.InferenceGRPCClient(url, use_ssl=is_secured(server), root_certificates=root) as client:
            assert await client.is_server_live(headers=more)
            assert await client.is_server_ready(headers=more)
            assert await client.is_model_ready("m", headers=more)
            check(await client.infer(question(binary=binary), headers=more))

    asyncio.run(main())
