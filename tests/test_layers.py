"""The map of rooms (../shared/ARCHITECTURE.md, docs/rooms.md), held by a walk over every import.

A room imports from layers below its own, never from beside or above; the single files of the layers in FREE may know
each other. What runs in a worker process imports the standard library and NumPy only, so that another interpreter
(EXECUTION_ENV_PATH) can run it.
"""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = "edge_serve"

#: room -> layer; a room is a package or a single file of edge_serve/, or a folder of observe/
LAYERS = {
    "errors": 0, "clock": 0, "records": 0, "messages": 0, "files": 0, "aio": 0, "tensors": 0, "devices": 0,
    "config": 1, "protocol": 1, "observe.metrics": 1, "observe.tracing": 1, "access": 1,
    "scheduling": 2, "backends": 2, "golden": 2,
    "workers": 3, "engines": 3,
    "models": 4,
    "service": 5,
    "transport": 6,
    "systemd": 7, "supervision": 7, "observe.status": 7, "observe.log": 7, "observe": 7, "doctor": 7, "check": 7,
    "server": 7, "doors": 7, "door_settings": 7, "in_process": 7, "testing": 7, "cli": 7, "__main__": 7,
    "commands": 7, "init": 7, "convert": 7, "draining": 7, "pack": 7, "first_workers": 7,
}  # fmt: skip
#: room -> its sub-rooms, bottom first: each imports those before it only; "" is the room's own files, but for those
#: named
SUB_ROOMS = {
    "config": ("model", "checks", "settings", ""),
    "protocol": ("inference", "http1", "http2", "v2", "grpc"),
    "scheduling": ("", "sequence", "ensemble", "start_delay", "policy"),
    "backends": ("", "cuda", "tensorrt", "python.api", "python_path", "python", "onnxruntime"),
    "models": ("repository", "run", "versions", "ensemble", "extras", "load", "control"),
    "workers": ("wire", "child", "launch", "memory", "front", "codec"),
    "transport": ("sockets", "door", "http", "v2", "grpc", "grpc_service"),
}
#: layers whose rooms may import each other
FREE = {0, 7}

#: the files that run in a worker process, and the backends it may load
WORKER_STARTS = (
    "edge_serve.workers.child.", "edge_serve.workers.wire.", "edge_serve.backends.", "edge_serve.engines.child",
    "edge_serve.pack.probe",
)  # fmt: skip
#: the folders of workers/ that run in the front end only
FRONT_END_SIDE = ("memory", "launch", "front")
#: what worker-side code may import beside the standard library and edge_serve
WORKER_LIBRARIES = {"numpy"}
#: a backend's own library, imported in its own file only
BACKEND_LIBRARIES = {
    "edge_serve.backends.onnxruntime.session": {"onnxruntime"},
    "edge_serve.backends.cuda.bindings": {"cuda"},
    "edge_serve.backends.cuda.pycuda": {"pycuda"},
    "edge_serve.backends.tensorrt": {"tensorrt", "cuda", "pycuda"},
}
#: for checkers of types: these imports do not run
CHECKER_LIBRARIES = {"edge_serve.records": {"typing_extensions"}}
#: modules that exist only inside a worker's interpreter
WORKER_ONLY_MODULES = {"triton_python_backend_utils", "c_python_backend_utils"}

Sources = Mapping[str, str]


def sources_of(root: Path, package: str) -> dict[str, str]:
    """Module name -> source, for every file of a package."""
    sources = {}
    for path in sorted((root / package).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        sources[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path.read_text()
    return sources


@functools.cache
def _import_nodes(source: str) -> list[ast.Import | ast.ImportFrom]:
    """Parse each source once: the tests below walk over the whole package a dozen times."""
    return [node for node in ast.walk(ast.parse(source)) if isinstance(node, (ast.Import, ast.ImportFrom))]


def imports_of(module: str, source: str, sources: Sources) -> Iterator[str]:
    """Names of what a module imports anywhere in it, as module names where those exist in `sources`."""
    for node in _import_nodes(source):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                yield "." * node.level + (node.module or "")
                continue
            base = node.module or ""
            for alias in node.names:
                name = f"{base}.{alias.name}"
                yield name if name in sources else base


def room_of(module: str) -> str:
    """Return `config` for edge_serve.config.model.text, `observe.log` for a file of it, "" for the package itself."""
    parts = module.split(".")[1:]
    folder = ".".join(parts[:2])
    return folder if folder in LAYERS else "".join(parts[:1])


def layer_breaches(sources: Sources) -> list[str]:
    """Return the breaches of the map as texts."""
    found = []
    for module, source in sources.items():
        room = room_of(module)
        if room and room not in LAYERS:
            found.append(f"{module}: the room '{room}' is not in the map")
            continue
        for name in imports_of(module, source, sources):
            if name.startswith("."):
                found.append(f"{module}: relative import '{name}', write it absolutely")
            elif name.split(".")[0] == PACKAGE and room and room_of(name) not in ("", room):
                found += _breach(module, room, name)
            elif name.split(".")[0] == "ota":
                found.append(f"{module}: imports {name}; ota and edge_serve share no imports")
    return found


def _breach(module: str, room: str, name: str) -> list[str]:
    other = room_of(name)
    if other not in LAYERS:
        return [f"{module}: imports {name}, whose room is not in the map"]
    here, there = LAYERS[room], LAYERS[other]
    if there < here or (there == here and here in FREE):
        return []
    return [f"{module} (layer {here}) imports {name} (layer {there})"]


def mutual_imports(sources: Sources) -> list[tuple[str, str]]:
    """Pairs of rooms that import each other: the map lets neighbours of a free layer know each other, one way."""
    known = {
        (room_of(module), room_of(name))
        for module, source in sources.items()
        for name in imports_of(module, source, sources)
        if name.split(".")[0] == PACKAGE
    }
    return sorted((here, there) for here, there in known if "" < here < there and (there, here) in known)


def sub_room_of(module: str, room: str) -> str:
    """Return the longest name in SUB_ROOMS that a module of `room` lies in; "" for the room's own files."""
    inside = module.removeprefix(f"{PACKAGE}.{room}").lstrip(".")
    found = [one for one in SUB_ROOMS[room] if one and (inside == one or inside.startswith(f"{one}."))]
    if not found and "." in inside:
        return inside.rpartition(".")[0]
    return max(found, key=len, default="")


def sub_room_breaches(sources: Sources) -> list[str]:
    """Return the imports that go up or sideways inside a room, and folders that SUB_ROOMS does not name."""
    found = []
    for module, source in sources.items():
        room = room_of(module)
        if room not in SUB_ROOMS or module == f"{PACKAGE}.{room}":
            continue
        here, order = sub_room_of(module, room), SUB_ROOMS[room]
        if here not in order:
            found.append(f"{module}: the folder '{here}' is not in SUB_ROOMS")
            continue
        for name in imports_of(module, source, sources):
            there = sub_room_of(name, room) if name in sources and room_of(name) == room else here
            if there not in order or order.index(there) > order.index(here):
                found.append(f"{module} imports {name}, which lies above it")
    return found


def worker_breaches(sources: Sources) -> list[str]:
    """Return the forbidden imports of worker-side code: of all that a worker's start can reach."""
    waiting = [name for name in sources if name.startswith(WORKER_STARTS)]
    reached: set[str] = set()
    found = []
    while waiting:
        module = waiting.pop()
        if module in reached or module not in sources:
            continue
        reached.add(module)
        own = BACKEND_LIBRARIES.get(module, set()) | CHECKER_LIBRARIES.get(module, set())
        allowed = WORKER_LIBRARIES | WORKER_ONLY_MODULES | own
        for name in imports_of(module, sources[module], sources):
            top = name.split(".")[0]
            if top == PACKAGE:
                waiting.append(name)
            elif top not in sys.stdlib_module_names and top not in allowed:
                found.append(f"{module} runs in workers and imports {name}")
    return found


def test_rooms_import_downwards_only() -> None:
    assert layer_breaches(sources_of(ROOT, PACKAGE)) == []


def test_no_two_rooms_import_each_other() -> None:
    assert mutual_imports(sources_of(ROOT, PACKAGE)) == []
    planted = {"edge_serve.supervision.command": "import edge_serve.systemd.notify", "edge_serve.systemd.notify": ""}
    assert mutual_imports(planted) == []
    planted["edge_serve.systemd.unit"] = "def f():\n    from edge_serve.supervision.command import x"
    assert mutual_imports(planted) == [("supervision", "systemd")]


def test_sub_rooms_import_downwards_only() -> None:
    assert sub_room_breaches(sources_of(ROOT, PACKAGE)) == []
    up = {"edge_serve.models.run.x": "import edge_serve.models.load.y", "edge_serve.models.load.y": ""}
    down = {"edge_serve.models.run.x": "", "edge_serve.models.load.y": "import edge_serve.models.run.x"}
    assert len(sub_room_breaches(up)) == 1
    assert sub_room_breaches(down) == []
    assert len(sub_room_breaches({"edge_serve.models.attic.x": ""})) == 1


def test_worker_side_imports_the_standard_library_and_numpy_only() -> None:
    assert worker_breaches(sources_of(ROOT, PACKAGE)) == []


def process_breaches(sources: Sources) -> list[str]:
    """Return the imports from the front end's folders of workers/ to `child/`: no file has a half in each process."""
    sides = tuple(f"{PACKAGE}.workers.{folder}." for folder in FRONT_END_SIDE)
    return [
        f"{module} runs in the front end and imports {name}"
        for module, source in sources.items()
        for name in imports_of(module, source, sources)
        if module.startswith(sides) and name.startswith(f"{PACKAGE}.workers.child")
    ]


def test_the_front_end_imports_nothing_of_the_worker_process() -> None:
    assert process_breaches(sources_of(ROOT, PACKAGE)) == []
    planted = {"edge_serve.workers.front.x": "import edge_serve.workers.child.y"}
    assert process_breaches(planted) == [
        "edge_serve.workers.front.x runs in the front end and imports edge_serve.workers.child.y"
    ]


def test_ota_imports_nothing_of_edge_serve() -> None:
    sources = sources_of(ROOT, "ota")
    imported = {name for module, source in sources.items() for name in imports_of(module, source, sources)}
    assert not [name for name in imported if name.split(".")[0] == PACKAGE]


#: room of ota/ -> layer; the rooms of a layer in OTA_FREE may know each other
OTA_LAYERS = {
    "errors": 0, "strict_json": 0, "clock": 0, "files": 0, "settings": 0, "source": 0,
    "documents": 1,
    "layout": 2, "decide": 2,
    "trust": 3, "fetch": 3, "store": 3, "server": 3,
    "agent": 4, "publish": 4,
    "commands": 5, "cli": 6, "conformance": 6, "__main__": 7,
}  # fmt: skip
OTA_FREE = {0}


def ota_breaches(sources: Sources) -> list[str]:
    """Imports of ota/ that go up or sideways, and rooms that are not in its map."""
    found = []
    for module, source in sources.items():
        room = room_of(module)
        if room and room not in OTA_LAYERS:
            found.append(f"{module}: the room '{room}' is not in the map")
            continue
        for name in imports_of(module, source, sources):
            other = room_of(name)
            if name.split(".")[0] != "ota" or not room or other in ("", room):
                continue
            here, there = OTA_LAYERS[room], OTA_LAYERS[other]
            if there > here or (there == here and here not in OTA_FREE):
                found.append(f"{module} (layer {here}) imports {name} (layer {there})")
    return found


def test_rooms_of_ota_import_downwards_only() -> None:
    assert ota_breaches(sources_of(ROOT, "ota")) == []
    assert ota_breaches({"ota.documents.bad": "import ota.agent.update"}) != []
    assert ota_breaches({"ota.trust.bad": "from ota.fetch import http"}) != []


def image_breaches(sources: Sources) -> list[str]:
    """Return the imports of image/ that it may not have: `device/` has the standard library alone on its device."""
    found = []
    for module, source in sources.items():
        device = module.startswith("image.device")
        for name in imports_of(module, source, sources):
            top = name.split(".")[0]
            if name.startswith(".") or top in (PACKAGE, "ota"):
                found.append(f"{module}: imports {name}")
            elif device and top not in sys.stdlib_module_names and not name.startswith("image.device"):
                found.append(f"{module} runs on the device and imports {name}")
            elif not device and name.startswith("image.device."):
                found.append(f"{module} runs on the building machine and imports {name}")
    return found


def test_image_imports_neither_the_server_nor_the_agent_and_the_device_part_the_standard_library_only() -> None:
    assert image_breaches(sources_of(ROOT, "image")) == []
    planted = {
        "image.device.x": "import deploy.version",
        "image.build": "import image.device.x",
        "image.device.y": "import ota",
    }
    assert len(image_breaches(planted)) == 3
    allowed = {
        "image.device.x": "import image.device.y\nimport json",
        "image.device.y": "",
        "image.build": "import deploy",
    }
    assert image_breaches(allowed) == []


@pytest.mark.parametrize(
    ("module", "source", "complaint"),
    [
        ("edge_serve.config.bad", "import edge_serve.service", "(layer 1) imports edge_serve.service (layer 5)"),
        ("edge_serve.config.bad", "from edge_serve import service", "(layer 1) imports edge_serve.service (layer 5)"),
        ("edge_serve.config.bad", "from edge_serve.protocol.v2 import routes", "(layer 1) imports edge_serve.protocol"),
        (
            "edge_serve.scheduling.bad",
            "def f():\n    import edge_serve.backends.base",
            "imports edge_serve.backends.base",
        ),
        (
            "edge_serve.errors",
            "from edge_serve.config.model.text import x",
            "(layer 0) imports edge_serve.config.model.text",
        ),
        ("edge_serve.models.bad", "from . import driver", "relative import"),
        ("edge_serve.parlour.bad", "", "the room 'parlour' is not in the map"),
        ("edge_serve.models.bad", "import edge_serve.parlour", "whose room is not in the map"),
        ("edge_serve.models.bad", "import ota.bundle", "share no imports"),
    ],
)
def test_a_planted_breach_of_the_layers_is_found(module: str, source: str, complaint: str) -> None:
    sources = {**sources_of(ROOT, PACKAGE), "edge_serve.service": "", module: source}
    found = [breach for breach in layer_breaches(sources) if breach.startswith(module)]
    assert len(found) == 1
    assert complaint in found[0]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("edge_serve.backends.mine", "import orjson"),
        ("edge_serve.backends.mine", "def f():\n    from google.protobuf import text_format"),
        ("edge_serve.backends.mine", "import onnxruntime"),
        ("edge_serve.messages.tensors", "import orjson"),
        ("edge_serve.workers.child.main", "import psutil"),
        ("edge_serve.workers.child.memory.new", "import psutil"),
        ("edge_serve.workers.wire.new", "import psutil"),
    ],
)
def test_a_planted_library_on_the_workers_side_is_found(module: str, source: str) -> None:
    sources = {
        "edge_serve.workers.child.main": "import edge_serve.messages.tensors",
        "edge_serve.messages.tensors": "import numpy",
    }
    assert worker_breaches(sources) == []
    (breach,) = worker_breaches({**sources, module: source})
    assert breach.startswith(module)


def test_neighbours_of_the_free_layers_may_know_each_other() -> None:
    assert layer_breaches({"edge_serve.messages.tensors": "import edge_serve.errors", "edge_serve.errors": ""}) == []


def test_a_backend_may_import_its_own_library() -> None:
    assert worker_breaches({"edge_serve.backends.onnxruntime.session": "import onnxruntime"}) == []
