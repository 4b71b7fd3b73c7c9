from __future__ import annotations

import pytest

from edge_serve.errors import InvalidArgument
from edge_serve.transport.v2.routes import Operation, Route, RouteGroup, match


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/v2", Route(Operation.SERVER_METADATA, True)),
        ("GET", "/v2?x=y", Route(Operation.SERVER_METADATA, True)),
        ("POST", "/v2", Route(Operation.SERVER_METADATA, False)),
        ("GET", "/v2/health/live", Route(Operation.SERVER_LIVE, True)),
        ("GET", "/v2/health/ready?x=1", Route(Operation.SERVER_READY, True)),
        ("GET", "/v2/models/m", Route(Operation.MODEL_METADATA, True, "m")),
        ("HEAD", "/v2/models/m", Route(Operation.MODEL_METADATA, False, "m")),
        ("GET", "/v2/models/m/versions/3", Route(Operation.MODEL_METADATA, True, "m", "3")),
        ("GET", "/v2/models/m/versions/010/config", Route(Operation.MODEL_CONFIG, True, "m", "10")),
        ("GET", "/v2/models/m/versions/000/ready", Route(Operation.MODEL_READY, True, "m", "0")),
        ("POST", "/v2/models/m/infer", Route(Operation.INFER, True, "m")),
        ("GET", "/v2/models/m/infer", Route(Operation.INFER, False, "m")),
        ("POST", "/v2/models/m/versions/1/infer?foo=bar", Route(Operation.INFER, True, "m", "1")),
        ("POST", "/v2/models/m/generate", Route(Operation.GENERATE, True, "m")),
        ("POST", "/v2/models/m/versions/2/generate_stream", Route(Operation.GENERATE_STREAM, True, "m", "2")),
        ("GET", "/v2/models/stats", Route(Operation.MODEL_STATISTICS, True)),
        ("GET", "/v2/models/stats/stats", Route(Operation.MODEL_STATISTICS, True, "stats")),
        ("POST", "/v2/models/m/trace/setting", Route(Operation.TRACE_SETTING, True, "m")),
        ("GET", "/v2/trace/setting", Route(Operation.TRACE_SETTING, True)),
        ("POST", "/v2/logging", Route(Operation.LOGGING, True)),
        ("DELETE", "/v2/logging", Route(Operation.LOGGING, False)),
        ("POST", "/v2/repository/index", Route(Operation.REPOSITORY_INDEX, True)),
        ("POST", "/v2/repository/r/index", Route(Operation.REPOSITORY_INDEX, True, repository="r")),
        ("POST", "/v2/repository/models/m/load", Route(Operation.MODEL_LOAD, True, "m")),
        ("POST", "/v2/repository/r/models/m/unload", Route(Operation.MODEL_UNLOAD, True, "m", repository="r")),
        ("GET", "/v2/systemsharedmemory/status", Route(Operation.SYSTEM_SHM_STATUS, True)),
        ("GET", "/v2/systemsharedmemory/region/x/register", Route(Operation.SYSTEM_SHM_REGISTER, False, region="x")),
        ("POST", "/v2/cudasharedmemory/unregister", Route(Operation.CUDA_SHM_UNREGISTER, True)),
        ("GET", "/v2/models/odd%2Bname%402", Route(Operation.MODEL_METADATA, True, "odd+name@2")),
        ("GET", "/v2/models/a+b@2", Route(Operation.MODEL_METADATA, True, "a+b@2")),
        ("GET", "/v2/models/a%2Fb/ready", Route(Operation.MODEL_READY, True, "a/b")),
        ("GET", "/v2/models/a%2/ready", Route(Operation.MODEL_READY, True, "a%2")),
        ("GET", "/v2/models/caf%C3%A9", Route(Operation.MODEL_METADATA, True, "café")),
    ],
)
def test_paths_that_exist(method: str, path: str, expected: Route) -> None:
    assert match(method, path) == expected


@pytest.mark.parametrize(
    "path",
    [
        "", "/v2/", "/v3", "/v2/health", "/v2/health/live/", "/v2/health/nope", "/v2/models", "/v2/models/",
        "/v2/models//infer", "/v2/models//versions/1", "/v2/models/m/", "/v2/models/m/infer/", "/v2/models/m/Infer",
        "/v2/models/m/inferx", "/v2/models/m/versions/abc", "/v2/models/m/versions/1/infer/x",
        "/v2/models/m/versions/-1",
        "/v2/models/m/versions/1/trace/setting", "/v2/models/a/b/infer", "/v2/repository/models/load", "/v2/repository",
        "/v2/repository/models/a/reload", "/v2/logging/", "/v2/trace", "/v2/systemsharedmemory/region/x",
        "/v2/gpusharedmemory/status", "/v2%2Fmodels/m", "/v2/models/m/versions/\u0661",
    ],
)  # fmt: skip
def test_paths_that_do_not_exist(path: str) -> None:
    assert match("GET", path) is None


def test_our_own_paths_exist_for_get_only() -> None:
    for path, operation in (
        ("/", Operation.ROOT),
        ("/ui", Operation.PAGE),
        ("/edge-serve/status?x=1", Operation.STATUS),
    ):
        assert match("GET", path) == Route(operation, allowed=True)
        assert match("POST", path) is None


def test_a_version_beyond_64_bits_is_refused_with_tritons_words() -> None:
    with pytest.raises(InvalidArgument, match=r"failed to get model version from specified version string '9{20}'"):
        match("GET", "/v2/models/m/versions/" + "9" * 20)
    largest = match("GET", f"/v2/models/m/versions/{2**63 - 1}")
    assert largest is not None
    assert largest.version == str(2**63 - 1)


def test_long_paths_are_matched_like_short_ones() -> None:
    name = "m" * 1000
    assert match("POST", f"/v2/models/{name}/infer") == Route(Operation.INFER, True, name)


def test_every_group_of_restricted_apis_has_an_operation() -> None:
    assert {operation.group for operation in Operation} == set(RouteGroup)
