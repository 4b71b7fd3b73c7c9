"""The agent's words with a real edge-serve, and with servers that do not behave."""

from __future__ import annotations

import shutil
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ota.errors import ServerError
from ota.server.admin_client import AdminClient, ServerReload
from tests.server.running import ADD_SUB, Running, python_model, running


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    python_model(root, "det")
    return root


@pytest.fixture(scope="module")
def server(root: Path) -> Iterator[Running]:
    with running("--model-repository", str(root), "--admin-socket", str(root.parent / "admin.sock")) as one:
        yield one


def test_a_reload_says_which_version_serves_and_why_one_does_not(server: Running, root: Path) -> None:
    subject = AdminClient(str(root.parent / "admin.sock"))
    assert subject.is_there()
    over_http = AdminClient(f"http://127.0.0.1:{server.http}")
    assert [row["name"] for row in over_http.status()["models"]] == ["det"]

    shutil.rmtree(root / "det")
    python_model(root, "det", version=2)
    assert subject.reload(["det"]) == {"det": ServerReload(("2",))}
    python_model(root, "det", "raise ValueError('no weights')", version=3)
    found = subject.reload(["det"])["det"]
    assert (found.versions, "no weights" in found.reason) == (("2",), True)
    shutil.rmtree(root / "det" / "3")
    assert subject.reload(["det"], unload_first=True) == {"det": ServerReload(("2",))}


def test_where_models_are_loaded_on_request_a_reload_loads_them(root: Path) -> None:
    flags = ("--model-control-mode", "explicit", "--load-model", "other")
    folder = root.parent / "explicit"
    python_model(folder, "other")
    with running("--model-repository", str(folder), *flags) as server:
        python_model(folder, "det")
        subject = AdminClient(f"http://127.0.0.1:{server.http}")
        assert subject.reload(["det"]) == {"det": ServerReload(("1",))}
        found = subject.reload(["nowhere"])["nowhere"]
        assert (found.versions, "nowhere" in found.reason) == ((), True)
        shutil.rmtree(folder / "det")
        python_model(folder, "other", version=2)
        assert subject.reload(["other"], removed=["det", "nowhere"]) == {
            "other": ServerReload(("2",)), "det": ServerReload(()), "nowhere": ServerReload(()),
        }  # fmt: skip
        assert server.get("/v2/models/det/ready")[0] == 400


def test_no_server_is_one_clear_error(tmp_path: Path) -> None:
    subject = AdminClient(str(tmp_path / "admin.sock"))
    assert not subject.is_there()
    with pytest.raises(ServerError, match=r"no edge-serve answers at .*start it"):
        subject.status()
    with pytest.raises(ServerError, match=r"expected the path of a socket"):
        AdminClient("ftp://x").status()


SLOW = "import time\nfrom pathlib import Path\nwhile not Path({gate!r}).exists(): time.sleep(0.02)\n"


def test_a_server_that_is_starting_loads_nothing_and_so_is_not_there(tmp_path: Path) -> None:
    gate, admin = tmp_path / "gate", tmp_path / "admin.sock"
    python_model(tmp_path / "models", "det", SLOW.format(gate=str(gate)) + ADD_SUB)
    flags = ("--model-repository", str(tmp_path / "models"), "--admin-socket", str(admin))
    with running(*flags, ready=False):
        subject = AdminClient(str(admin))
        assert subject.status()["server"]["state"] == "starting"
        assert not subject.is_there()
        with pytest.raises(ServerError, match="HTTP 503"):
            subject.reload(["det"])
        gate.touch()
        end = time.monotonic() + 20
        while not subject.is_there():
            assert time.monotonic() < end
            time.sleep(0.02)
        assert subject.reload(["det"]) == {"det": ServerReload(("1",))}


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", "no status document"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[", "no edge-serve answers|no status document"),
        (b"SSH-2.0-OpenSSH\r\n", "no edge-serve answers"),
        (b"", "no edge-serve answers"),
    ],
)
def test_another_program_at_that_address_is_one_clear_error(answer: bytes, complaint: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(ServerError, match=complaint):
            AdminClient(f"http://127.0.0.1:{listener.getsockname()[1]}").status()
        thread.join(5)


def test_a_server_that_hangs_ends_with_the_limit() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        subject = AdminClient(f"http://127.0.0.1:{listener.getsockname()[1]}", load_limit=0.3)
        with pytest.raises(ServerError, match=r"did not answer POST /edge-serve/reload within 0.3 s"):
            subject.reload(["det"])
