"""How a model's file is found and imported, and what is said when it does not import."""

from __future__ import annotations

import sys

import pytest

from edge_serve.backends.base import InstanceSpec
from edge_serve.backends.python import backend as python
from edge_serve.errors import Internal
from tests.backends.hosting import PythonScene, model_source, model_spec, number, request, run, text_of, write_model

SAY = "return [pb_utils.InferenceResponse([pb_utils.Tensor('OUTPUT0', np.array([str({}).encode()], object))])]"


def load_error(scene: PythonScene, source: str) -> str:
    with pytest.raises(Internal) as caught:
        scene.open(source)
    assert "1.model" not in sys.modules
    return caught.value.message


def test_the_module_is_a_part_of_a_package_named_by_the_version(scene: PythonScene) -> None:
    (reply,) = scene.execute(SAY.format("[__name__, __package__, pb_utils.get_model_dir()]"))
    assert text_of(reply) == str(["1.model", "1", str(scene.directory / "m/1")])


def test_models_of_several_files_and_relative_imports(scene: PythonScene) -> None:
    write_model(scene.directory / "m", "from .deeper import VALUE\n", "1/parts/__init__.py")
    write_model(scene.directory / "m", "VALUE = 5\n", "1/parts/deeper.py")
    write_model(scene.directory / "m", "SHARED = 6\n", "shared_beside_versions.py")
    write_model(scene.directory / "m", "PLAIN = 7\n", "1/plain_in_version.py")
    imports = (
        "from .parts import VALUE\nfrom shared_beside_versions import SHARED\nimport plain_in_version\n"
        "VALUES = [VALUE, SHARED, plain_in_version.PLAIN]\n"
    )
    (reply,) = run(scene.open(imports + model_source(SAY.format("VALUES"))))
    assert text_of(reply) == "[5, 6, 7]"


def test_the_package_has_its_own_init_file(scene: PythonScene) -> None:
    write_model(scene.directory / "m", "from .parts import VALUE\n", "1/__init__.py")
    write_model(scene.directory / "m", "VALUE = 5\n", "1/parts.py")
    (reply,) = run(scene.open("from . import VALUE\n" + model_source(SAY.format("VALUE"))))
    assert text_of(reply) == "5"


def test_an_init_file_that_fails_fails_the_load(scene: PythonScene) -> None:
    file = write_model(scene.directory / "m", "raise ValueError('init ran')\n", "1/__init__.py") / "1/__init__.py"
    message = load_error(scene, model_source("return []"))
    assert message == f"ValueError: init ran\n\nAt:\n  {file}(1): <module>\n"
    assert "1" not in sys.modules


CALLABLES = {
    "partial": "import functools\nTritonPythonModel = functools.partial(Base, 7)",
    "factory": "def TritonPythonModel():\n    return Base(7)",
    "attribute": ("class TritonPythonModel:\n    def initialize(self, args):\n        self.execute = Base(7).execute"),
    "__getattr__": (
        "class TritonPythonModel:\n"
        "    def initialize(self, args):\n        self.base = Base(7)\n"
        "    def __getattr__(self, name):\n        return getattr(self.__dict__['base'], name)"
    ),
}


@pytest.mark.parametrize("form", sorted(CALLABLES))
def test_the_model_is_whatever_the_call_returns_and_may_get_execute_in_initialize(
    scene: PythonScene, form: str
) -> None:
    base = model_source(SAY.format("self.number")).replace("TritonPythonModel:", "Base:")
    init = "    def __init__(self, number):\n        self.number = number\n"
    (reply,) = run(scene.open(f"{base}{init}{CALLABLES[form]}\n"))
    assert text_of(reply) == "7"


def test_default_model_filename(scene: PythonScene) -> None:
    write_model(scene.directory / "m", model_source(SAY.format("__name__")), "1/other.py")
    config = {"default_model_filename": "other.py"}
    (reply,) = run(scene.open("raise ValueError('not this one')", config), request(number()))
    assert text_of(reply) == "1.other"


def test_closing_takes_modules_and_paths_away(scene: PythonScene) -> None:
    before = list(sys.path)
    scene.open(model_source("return []"))
    assert sys.path != before
    scene.close()
    assert sys.path == before
    assert "1.model" not in sys.modules


def test_a_missing_file(scene: PythonScene) -> None:
    directory = scene.directory / "m"
    (directory / "1").mkdir(parents=True)
    with pytest.raises(Internal) as caught:
        python.PythonBackend().open(model_spec(directory), [InstanceSpec("m_0")])
    said = f"Python model file not found in '{directory / '1/model.py'}'"
    assert caught.value.message == f"{said}; m/1/ is empty: put the model's file there, as model.py"


def test_a_file_that_is_no_python(scene: PythonScene) -> None:
    directory = write_model(scene.directory / "m", "", "1/model.txt")
    spec = model_spec(directory, {"default_model_filename": "model.txt"})
    with pytest.raises(Internal) as caught:
        python.PythonBackend().open(spec, [InstanceSpec("m_0")])
    assert caught.value.message == "Model name must end with '.py'. Model name is \"model.txt\"."


def test_a_syntax_error(scene: PythonScene) -> None:
    message = load_error(scene, "class TritonPythonModel:\n    def execute(self, requests)\n        return []\n")
    path = scene.directory / "m/1/model.py"
    assert message == (
        f"SyntaxError: expected ':' (model.py, line 2); {path}, line 2 reads: 'def execute(self, requests)'"
    )


def test_an_import_error_names_the_file_that_imports_first(scene: PythonScene) -> None:
    message = load_error(scene, "import no_such_module_at_all\n")
    start = (
        "ModuleNotFoundError: No module named 'no_such_module_at_all'\n\nAt:\n"
        f"  {scene.directory / 'm/1/model.py'}(1): <module>\nInstall it for the Python that runs the model: "
    )
    assert message.startswith(start)
    assert message.endswith("; if it is a file of yours, put it beside model.py")


def test_a_missing_file_of_the_model_is_no_package_to_install(scene: PythonScene) -> None:
    message = load_error(scene, "from .parts.deep import VALUE\n")
    path = scene.directory / "m/1/model.py"
    assert message == (
        f"ModuleNotFoundError: No module named '1.parts'\n\nAt:\n  {path}(1): <module>\n"
        f"Put parts.py into {path.parent}, with this spelling"
    )


def test_a_file_that_is_no_package_gets_no_advice_to_add_one(scene: PythonScene) -> None:
    write_model(scene.directory / "m", "VALUE = 5\n", "1/parts.py")
    message = load_error(scene, "from .parts.deep import VALUE\n")
    path = scene.directory / "m/1/model.py"
    said = "No module named '1.parts.deep'; '1.parts' is not a package"
    assert message == f"ModuleNotFoundError: {said}\n\nAt:\n  {path}(1): <module>\n"


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("class SomethingElse: pass", "AttributeError: module '1.model' has no attribute 'TritonPythonModel'"),
        ("TritonPythonModel = None", "AttributeError: module '1.model' has no attribute 'TritonPythonModel'"),
        ("import sys; sys.exit(3)", "SystemExit: 3\n\nAt:\n  {path}(1): <module>\n"),
    ],
)
def test_a_file_without_a_model(scene: PythonScene, source: str, text: str) -> None:
    assert load_error(scene, source).startswith(text.format(path=scene.directory / "m/1/model.py"))


@pytest.mark.parametrize("body", ["pass", "execute = 5"])
def test_a_model_without_execute(scene: PythonScene, body: str) -> None:
    with pytest.raises(Internal) as caught:
        scene.open(f"class TritonPythonModel:\n    {body}\n")
    path = scene.directory / "m/1/model.py"
    assert caught.value.message == f"Python model {path} does not implement `execute` method."


def test_a_model_without_execute_is_finalized(scene: PythonScene) -> None:
    """Its `initialize` may have started a process or opened a camera."""
    source = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            pb_utils.Logger.log_info("opened")

        def finalize(self):
            pb_utils.Logger.log_info("closed")
    """
    with pytest.raises(Internal, match="does not implement `execute` method"):
        scene.open(source)
    assert scene.host.lines == [("INFO", "opened"), ("INFO", "closed")]


def test_a_constructor_that_wants_arguments(scene: PythonScene) -> None:
    source = "class TritonPythonModel:\n    def __init__(self, x): pass\n    def execute(self, requests): return []\n"
    with pytest.raises(Internal) as caught:
        scene.open(source)
    assert caught.value.message.endswith("__init__() missing 1 required positional argument: 'x'")
    assert caught.value.message.startswith("TypeError: ")


def test_a_stand_in_beside_the_model_is_not_used(scene: PythonScene) -> None:
    write_model(scene.directory / "m", "raise AssertionError('the stand-in')", "1/triton_python_backend_utils.py")
    source = model_source("return [pb_utils.InferenceResponse([pb_utils.Tensor('OUTPUT0', np.ones(1))])]")

    (reply,) = run(scene.open(source))

    assert reply.error is None
