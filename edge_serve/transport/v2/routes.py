"""The path table: operations, methods, roles, and patterns of whole paths (server src/http_server.cc, `Handle`).

A path has no trailing slash, a version has digits only, and the query string is ignored. Unlike in Triton,
percent-encoded names are decoded after matching, so that a `/` inside a name never makes another path.
"""

from __future__ import annotations

import re
from enum import Enum
from functools import lru_cache
from urllib.parse import unquote

from edge_serve.access.roles import Role
from edge_serve.errors import EdgeServeError, InvalidArgument, NotFound
from edge_serve.protocol.http1.errors import ContentTooLarge
from edge_serve.protocol.inference.cost import SMALL_BYTES
from edge_serve.records import frozen


class PathNotFound(NotFound):
    """No operation has this path."""

    def __init__(self) -> None:
        super().__init__("Not Found")


class Restricted(EdgeServeError):
    """The operation is in a group of `--http-restricted-api` and the header is missing or wrong."""

    http_status, grpc_code, triton_name = 403, "UNAVAILABLE", "Unavailable"

    def __init__(self, header: str) -> None:
        super().__init__(f"This API is restricted, expecting header '{header}'")


class RouteGroup(Enum):
    """The groups of `--http-restricted-api` (server src/restricted_features.h)."""

    HEALTH = "health"
    METADATA = "metadata"
    INFERENCE = "inference"
    SHARED_MEMORY = "shared-memory"
    MODEL_CONFIG = "model-config"
    MODEL_REPOSITORY = "model-repository"
    STATISTICS = "statistics"
    TRACE = "trace"
    LOGGING = "logging"
    PAGE = "page"  # the files of the status page; its data is in STATISTICS


class Operation(Enum):
    """The operations over HTTP: (title, group, methods). The title makes each value distinct."""

    SERVER_LIVE = ("live", RouteGroup.HEALTH, ("GET",))
    SERVER_READY = ("ready", RouteGroup.HEALTH, ("GET",))
    SERVER_METADATA = ("server metadata", RouteGroup.METADATA, ("GET",))
    MODEL_READY = ("model ready", RouteGroup.HEALTH, ("GET",))
    MODEL_METADATA = ("model metadata", RouteGroup.METADATA, ("GET",))
    MODEL_CONFIG = ("model config", RouteGroup.MODEL_CONFIG, ("GET",))
    MODEL_STATISTICS = ("model statistics", RouteGroup.STATISTICS, ("GET",))
    INFER = ("infer", RouteGroup.INFERENCE, ("POST",))
    GENERATE = ("generate", RouteGroup.INFERENCE, ("POST",))
    GENERATE_STREAM = ("generate_stream", RouteGroup.INFERENCE, ("POST",))
    TRACE_SETTING = ("trace setting", RouteGroup.TRACE, ("GET", "POST"))
    LOGGING = ("logging", RouteGroup.LOGGING, ("GET", "POST"))
    REPOSITORY_INDEX = ("repository index", RouteGroup.MODEL_REPOSITORY, ("POST",))
    MODEL_LOAD = ("load", RouteGroup.MODEL_REPOSITORY, ("POST",))
    MODEL_UNLOAD = ("unload", RouteGroup.MODEL_REPOSITORY, ("POST",))
    SYSTEM_SHM_STATUS = ("system shared memory status", RouteGroup.SHARED_MEMORY, ("GET",))
    SYSTEM_SHM_REGISTER = ("system shared memory register", RouteGroup.SHARED_MEMORY, ("POST",))
    SYSTEM_SHM_UNREGISTER = ("system shared memory unregister", RouteGroup.SHARED_MEMORY, ("POST",))
    CUDA_SHM_STATUS = ("CUDA shared memory status", RouteGroup.SHARED_MEMORY, ("GET",))
    CUDA_SHM_REGISTER = ("CUDA shared memory register", RouteGroup.SHARED_MEMORY, ("POST",))
    CUDA_SHM_UNREGISTER = ("CUDA shared memory unregister", RouteGroup.SHARED_MEMORY, ("POST",))
    # our own, answered in `edge`; every path of Triton begins with /v2, so these never collide with one
    STATUS = ("status", RouteGroup.STATISTICS, ("GET",))
    LEAVE_SAFE_MODE = ("leave safe mode", RouteGroup.MODEL_REPOSITORY, ("POST",))
    RELOAD = ("reload", RouteGroup.MODEL_REPOSITORY, ("POST",))
    PAGE = ("status page", RouteGroup.PAGE, ("GET",))
    ROOT = ("root", RouteGroup.PAGE, ("GET",))

    def __init__(self, title: str, group: RouteGroup, methods: tuple[str, ...]) -> None:
        self.group = group
        self.methods = methods

    __hash__ = object.__hash__  # Enum's own hashes the name in Python, which is slow on the hot path

    def check_body(self, length: int) -> None:
        """Check the size of a request's body. Only inferences, which `infer` limits, and loads, which bring files, have
        large ones.

        Raises:
            ContentTooLarge: the event loop would read it for too long.
        """
        large = self.group is RouteGroup.INFERENCE or self is Operation.MODEL_LOAD
        if length > SMALL_BYTES and not large:
            raise ContentTooLarge(
                f"a body of {length} bytes is larger than {SMALL_BYTES} bytes, the most that '{self.value[0]}' takes"
            )

    def role(self, method: str) -> Role:
        """Return the role that a request with this method needs. Only GETs and the index change nothing."""
        fixed = _ROLES.get(self.group)
        if fixed is not None:
            return fixed
        reads = self is Operation.REPOSITORY_INDEX or ("GET" in self.methods and method in ("GET", "HEAD"))
        return Role.READ if reads else Role.ADMIN


#: role for all operations of a group; the files of the page contain no data of the server
_ROLES = {RouteGroup.HEALTH: Role.HEALTH, RouteGroup.INFERENCE: Role.INFER, RouteGroup.PAGE: Role.NONE}


@frozen
class Route:
    """The operation and names of a path.

    Attributes:
        allowed: the operation supports the method; if not, the answer is 405 (after the restricted-API check).
        version: digits without leading zeros; "" = none.
        repository: the `{r}` of `/v2/repository/{r}/...`.
        region: the shared memory region; "" = all.
        file: of the status page; "" = the page itself.
    """

    operation: Operation
    allowed: bool
    model: str = ""
    version: str = ""
    repository: str = ""
    region: str = ""
    file: str = ""


#: the last part of a path below a model -> its operation; None = the model itself
_MODEL_OPERATIONS = {
    None: Operation.MODEL_METADATA,
    "infer": Operation.INFER,
    "generate": Operation.GENERATE,
    "generate_stream": Operation.GENERATE_STREAM,
    "ready": Operation.MODEL_READY,
    "config": Operation.MODEL_CONFIG,
    "stats": Operation.MODEL_STATISTICS,
    "trace/setting": Operation.TRACE_SETTING,
}
_MODEL = re.compile(rf"/v2/models/([^/]+)(?:/versions/([0-9]+))?(?:/({'|'.join(filter(None, _MODEL_OPERATIONS))}))?")
_REPOSITORY = re.compile(r"/v2/repository(?:/([^/]+))?/(?:(index)|models/([^/]+)/(load|unload))")
_PAGE_FILE = re.compile(r"/ui/([a-z]+\.(?:css|js))")
_SHARED_MEMORY = re.compile(r"/v2/(system|cuda)sharedmemory(?:/region/([^/]+))?/(status|register|unregister)")

_FIXED = {
    "/v2": Operation.SERVER_METADATA,
    "/v2/health/live": Operation.SERVER_LIVE,
    "/v2/health/ready": Operation.SERVER_READY,
    "/v2/models/stats": Operation.MODEL_STATISTICS,
    "/v2/logging": Operation.LOGGING,
    "/v2/trace/setting": Operation.TRACE_SETTING,
    "/edge-serve/safe-mode/leave": Operation.LEAVE_SAFE_MODE,
    "/edge-serve/reload": Operation.RELOAD,
}
#: for GET only; with other methods these paths do not exist
_PAGES = {"/edge-serve/status": Operation.STATUS, "/ui": Operation.PAGE, "/": Operation.ROOT}

_INT64_MAX = 2**63 - 1


def match(method: str, path: str) -> Route | None:
    """Return the route of a request, None if the path does not exist. `path` may contain a query string.

    Raises:
        InvalidArgument: the version is not a 64-bit number.
    """
    return _match_cached(method, path) if len(path) <= _MAX_CACHED_LENGTH else _match(method, path)


def _match(method: str, path: str) -> Route | None:
    path = path.partition("?")[0]
    fixed = _FIXED.get(path)
    if fixed is not None:
        return Route(fixed, method in fixed.methods)
    if method == "GET":
        if path in _PAGES:
            return Route(_PAGES[path], allowed=True)
        if found := _PAGE_FILE.fullmatch(path):
            return Route(Operation.PAGE, allowed=True, file=found[1])
    for attempt in (_match_model, _match_repository, _match_shared_memory):
        route = attempt(method, path)
        if route is not None:
            return route
    return None


#: longer paths are not cached
_MAX_CACHED_LENGTH = 256
_match_cached = lru_cache(maxsize=1024)(_match)


def _match_model(method: str, path: str) -> Route | None:
    found = _MODEL.fullmatch(path)
    if found is None:
        return None
    name, version, kind = found.groups()
    if kind == "trace/setting" and version is not None:
        return None  # trace settings have no versions
    operation = _MODEL_OPERATIONS[kind]
    return Route(operation, method in operation.methods, unquote(name), _parse_version(version))


def _parse_version(text: str | None) -> str:
    if text is None:
        return ""
    number = text.lstrip("0") or "0"
    if len(number) > 19 or int(number) > _INT64_MAX:
        raise InvalidArgument(
            f"failed to get model version from specified version string '{text}' (details: stol), "
            "version should be an integral value > 0"
        )
    return number


def _match_repository(method: str, path: str) -> Route | None:
    found = _REPOSITORY.fullmatch(path)
    if found is None:
        return None
    repository, index, model, action = found.groups()
    operation = Operation.REPOSITORY_INDEX if index else Operation[f"MODEL_{action.upper()}"]
    return Route(operation, method in operation.methods, unquote(model or ""), repository=unquote(repository or ""))


def _match_shared_memory(method: str, path: str) -> Route | None:
    found = _SHARED_MEMORY.fullmatch(path)
    if found is None:
        return None
    kind, region, action = found.groups()
    operation = Operation[f"{kind}_SHM_{action}".upper()]
    return Route(operation, method in operation.methods, region=unquote(region or ""))
