"""Client of edge-serve's admin socket: GET /edge-serve/status, POST /edge-serve/reload, Triton's load and unload."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from ota.errors import ServerError
from ota.settings import NAMED_FILE
from ota.strict_json import find_object

#: bytes of an answer; the status of a thousand models has two million
MOST_ANSWER = 32 * 1024 * 1024
#: seconds for a response that needs no load
QUICK = 5.0
#: seconds for the load of a bundle
LOAD_SECONDS = 900.0


@dataclass(frozen=True, slots=True)
class ServerReload:
    """The result of a reload for one model.

    Attributes:
        versions: those that serve now.
        reason: why its last load failed; "" = it did not.
    """

    versions: tuple[str, ...]
    reason: str = ""


class AdminClient:
    """Client of one server.

    Args:
        address: the path of its socket, or `http://host:port`.
        load_limit: seconds that a reload may take.
    """

    def __init__(self, address: str, load_limit: float = LOAD_SECONDS) -> None:
        self._address = address
        self._load_limit = load_limit

    def is_there(self) -> bool:
        """Return whether edge-serve answers and can load models. It refuses to while it starts or stops."""
        try:
            server = self.status().get("server")
        except ServerError:
            return False
        return not isinstance(server, Mapping) or server.get("state") not in ("starting", "stopping")

    def status(self) -> dict[str, Any]:
        """Return the status document. docs/status.md has its members.

        Raises:
            ServerError: there is no answer, or it is no status document.
        """
        status, found = self._ask("GET", "/edge-serve/status", None, QUICK)
        if status != 200 or "models" not in found:
            raise ServerError(
                f"{self._address} returned no status document of edge-serve (HTTP {status}): {self._hint()}"
            )
        return found

    def reload(
        self, models: Sequence[str], *, removed: Sequence[str] = (), unload_first: bool = False
    ) -> dict[str, ServerReload]:
        """Make the server load changes of `models` and unload `removed`, and return the result for each.

        Args:
            removed: models that are no longer in the model repository.
            unload_first: the serving versions leave first, because memory holds one only.

        Raises:
            ServerError: the server does not answer in time, or refuses.
        """
        body = {"models": [*models, *removed], "unload_first": unload_first}
        status, found = self._ask("POST", "/edge-serve/reload", body, self._load_limit)
        if status == 400 and "explicit" in str(found.get("error")):
            results = {model: self._control(model, "load") for model in models}
            return results | {model: self._control(model, "unload") for model in removed}
        if status != 200 or not isinstance(found.get("models"), list):
            raise ServerError(
                f"edge-serve did not reload {', '.join([*models, *removed])}: HTTP {status}, {_error(found)}"
            )
        return {str(one["name"]): _loaded(one) for one in found["models"] if isinstance(one, dict) and "name" in one}

    def _control(self, model: str, verb: str) -> ServerReload:
        """Load or unload a model with model control mode `explicit`."""
        path = f"/v2/repository/models/{quote(model, safe='')}/{verb}"
        status, found = self._ask("POST", path, {}, self._load_limit)
        rows = [row for row in self.status()["models"] if isinstance(row, dict) and row.get("name") == model]
        serving = tuple(str(row.get("version")) for row in rows if row.get("state") == "READY")
        return ServerReload(serving, "" if status == 200 else _error(found))

    def _ask(self, method: str, path: str, body: object, limit: float) -> tuple[int, dict[str, Any]]:
        """Send a request. Return the HTTP status and the JSON object of the response; {} = not a JSON object."""
        end = time.monotonic() + limit
        try:
            with contextlib.closing(_connect(self._address, min(limit, QUICK))) as connection:
                connection.request(method, path, None if body is None else json.dumps(body))
                assert connection.sock is not None, "a request connects"
                connection.sock.settimeout(max(0.1, end - time.monotonic()))
                answer = connection.getresponse()
                data = answer.read(MOST_ANSWER + 1)
                status = answer.status
        except PermissionError:
            raise ServerError(f"no permission to use {self._address}: {self._hint()}") from None
        except TimeoutError:
            raise ServerError(
                f"edge-serve did not answer {method} {path} within {limit:g} s at {self._address}"
            ) from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise ServerError(f"no edge-serve answers at {self._address} ({reason}): {self._hint()}") from error
        found = find_object(data) if len(data) <= MOST_ANSWER else None
        return status, found or {}

    def _hint(self) -> str:
        return f"start it (systemctl start edge-serve), or set ADMIN_SOCKET in {NAMED_FILE}"


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a UNIX socket."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _connect(address: str, timeout: float) -> http.client.HTTPConnection:
    if "://" not in address:
        return _UnixConnection(address, timeout)
    parts = urlsplit(address)
    if parts.scheme != "http" or not parts.hostname:
        raise ServerError(f"ADMIN_SOCKET is {address!r}: expected the path of a socket, or http://127.0.0.1:PORT")
    return http.client.HTTPConnection(parts.hostname, parts.port or 80, timeout=timeout)


def _loaded(found: Mapping[str, Any]) -> ServerReload:
    versions = found.get("versions")
    return ServerReload(tuple(map(str, versions)) if isinstance(versions, list) else (), str(found.get("reason") or ""))


def _error(found: Mapping[str, Any]) -> str:
    return str(found.get("error") or "an answer without a reason")
