"""The page of a model in a real browser, over a real server: "try it" with values and files, and what it copies."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
from PIL import Image

from edge_serve.access.credentials import new_token
from edge_serve.access.roles import Role
from tests.browser import Browser, Page, chromium
from tests.server.running import Running, running
from tests.server.ui_models import EVIL, TYPES, write_models

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

GIB = 1 << 30


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as made:
        yield made


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    models = tmp_path_factory.mktemp("models")
    write_models(models)
    flags = (
        "--exit-on-error=false",
        "--model-control-mode=explicit",
        "--load-model=*",
        "--allow-grpc=true",
        "--exit-timeout-secs=1",
    )
    with running(f"--model-repository={models}", "--grpc-port=0", *flags) as started:
        yield started


@contextlib.contextmanager
def model_page(browser: Browser, server: Running, model: str, width: int = 1280) -> Iterator[Page]:
    """The page of a model in a tab of its own. It must have spoken to its server only, and complained of nothing."""
    page = browser.page()
    page.look_like(width, 900)
    try:
        page.open(f"http://{server.url}/ui#model/{model}")
        page.wait_for("!!document.querySelector('form.try')")
        yield page
        assert page.unnamed_controls() == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate("document.querySelectorAll('img, main script').length") == 0
        assert {urlsplit(one).netloc for one in page.requests if not one.startswith("blob:")} == {server.url}
        assert page.complaints == []
    finally:
        page.close()


def field(name: str) -> str:
    """The selector of an input's fieldset."""
    boxes = "[...document.querySelectorAll('fieldset.input')]"
    return f"{boxes}.find(one => one.querySelector('b').textContent === {name!r})"


def write(page: Page, name: str, text: str) -> None:
    page.evaluate(f"{field(name)}.querySelector('.choice [value=values]').click()")
    page.evaluate(
        f"{{ const area = {field(name)}.querySelector('textarea'); area.value = {json.dumps(text)};"
        "area.dispatchEvent(new Event('input', { bubbles: true })); }"
    )


def give(page: Page, name: str, path: Path) -> None:
    """Choose a file for an input, and wait until the page has read or refused it."""
    page.evaluate(f"{field(name)}.querySelector('.choice [value=file]').click()")
    page.evaluate("document.querySelector('#chosen')?.removeAttribute('id')")
    page.evaluate(f"{field(name)}.id = 'chosen'")
    page.evaluate("for (const one of document.querySelectorAll('.about, .problem')) one.textContent = ''")
    page.choose("#chosen input[type=file]", path)
    said = "document.querySelector('#chosen .{}').textContent"
    page.wait_for(f"{said.format('about')} + {said.format('problem')}")


def problem(page: Page) -> str:
    script = "[...document.querySelectorAll('fieldset.input .problem')].map(one => one.textContent).join(' ')"
    return str(page.evaluate(script))


def send(page: Page) -> str:
    """Send the request; the answer as text."""
    page.evaluate("document.querySelector('form.try').requestSubmit()")
    page.wait_for("!/^Waiting|Nothing/.test(document.querySelector('.result .status').textContent)")
    return str(page.evaluate("document.querySelector('.result').innerText"))


def program(page: Page, language: str) -> str:
    """The request as a program, as it is copied."""
    page.evaluate("document.querySelector('.snippet').open = true")
    page.evaluate(f"document.querySelector('.snippet .choice [value={language}]').click()")
    return str(page.evaluate("document.querySelector('.snippet code').textContent"))


def tensor_files(page: Page) -> dict[str, bytes]:
    """The files that the copied program wants saved, by pressing their buttons."""
    script = """(async () => {
        const saved = {}, create = URL.createObjectURL;
        const blobs = [];
        URL.createObjectURL = blob => { blobs.push(blob); return create(blob); };
        HTMLAnchorElement.prototype.click = function () { saved[this.download] = blobs.at(-1); };
        for (const one of document.querySelectorAll('.needed button')) one.click();
        delete HTMLAnchorElement.prototype.click;
        URL.createObjectURL = create;
        const bytes = {};
        for (const [name, blob] of Object.entries(saved)) bytes[name] = [...new Uint8Array(await blob.arrayBuffer())];
        return bytes;
    })()"""
    return {name: bytes(data) for name, data in page.awaited(script).items()}


def run(language: str, text: str, folder: Path) -> str:
    """Paste it into a shell, into Python, or into Node.js; what that prints."""
    if language == "curl":
        command = ["bash", "-c", text]
    elif language == "python":
        command = [sys.executable, "-c", text]
    else:
        node = shutil.which("node")
        if node is None:
            pytest.skip("NO NODE: the JavaScript of the page is not run")
        (folder / "request.mjs").write_text(text)
        command = [node, "request.mjs"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, (text, done.stderr)
    return done.stdout


def paste_all(page: Page, folder: Path, *wanted: str) -> None:
    """Run the request in all three languages; each prints all of `wanted`."""
    for language in ("curl", "python", "javascript"):
        text = program(page, language)
        for name, data in tensor_files(page).items():
            (folder / name).write_bytes(data)
        printed = run(language, text, folder).replace("\n", " ")
        for one in wanted:
            assert one in printed, (language, text, printed)


def picture(folder: Path, size: tuple[int, int] = (64, 32)) -> Path:
    path = folder / "it's a red.png"
    Image.new("RGB", size, (255, 0, 128)).save(path)
    return path


@pytest.mark.parametrize("width", [380, 1280])
def test_numbers(width: int, browser: Browser, server: Running, tmp_path: Path) -> None:
    with model_page(browser, server, "add_sub", width) as page:
        write(page, "INPUT0", ", ".join(map(str, range(16))))
        write(page, "INPUT1", "[[" + "1 " * 16 + "]]")
        answer = send(page)
        assert "2 outputs of version 1 in " in answer
        assert "OUTPUT0 INT32 [1, 16]\n1\t2\t3\t4" in answer
        assert "OUTPUT1 INT32 [1, 16]\n-1\t0\t1\t2" in answer
        page.screenshot(tmp_path / "page.png")
        if width == 1280:
            paste_all(page, tmp_path, "OUTPUT0", "16")
        write(page, "INPUT0", "1 2 3")
        page.evaluate("document.querySelector('form.try').requestSubmit()")
        assert problem(page).strip() == "INPUT0: found 3 values, and the shape [1, 16] needs 16 values"
        write(page, "INPUT0", "1 2 three")
        page.evaluate("document.querySelector('form.try').requestSubmit()")
        assert "“three” is not a whole number, which INT32 needs" in problem(page)


@pytest.mark.parametrize("width", [380, 1280])
def test_a_picture_for_a_network(width: int, browser: Browser, server: Running, tmp_path: Path) -> None:
    with model_page(browser, server, "chw", width) as page:
        give(page, "IMAGE", picture(tmp_path))
        answer = send(page)
        assert "SHAPE INT64 [1, 4]\n1\t3\t8\t16" in answer
        # -1 to 1: red is 1, green -1, blue 128 / 127.5 - 1; the second label is hostile
        words = " ".join(answer.split())
        assert "red 1.0000 0 blue 0.0039 2" in words
        assert EVIL in answer
        page.screenshot(tmp_path / "page.png")
        if width == 1280:
            paste_all(page, tmp_path, "1.0", ":0:red")


def test_a_picture_as_it_is(browser: Browser, server: Running, tmp_path: Path) -> None:
    with model_page(browser, server, "hwc") as page:
        give(page, "IMAGE", picture(tmp_path, (50, 20)))
        assert "SHAPE INT64 [3]\n20\t50\t3" in send(page)
        page.evaluate("{ const top = document.querySelector('.options input[min=\"0\"]'); top.value = 0; }")
        assert "255\t0\t128" in send(page)
        paste_all(page, tmp_path, "255", "128")


def test_text_and_files_as_strings(browser: Browser, server: Running, tmp_path: Path) -> None:
    (tmp_path / "-note.txt").write_text("wolf\n")
    with model_page(browser, server, "text") as page:
        write(page, "TEXT", 'stressed\nit\'s "so" $HOME\\n')
        answer = send(page)
        assert "REVERSED BYTES [2]" in answer
        assert "desserts" in answer
        paste_all(page, tmp_path, "desserts", "EMOH$")
        give(page, "TEXT", tmp_path / "-note.txt")
        assert "flow" in send(page)
        paste_all(page, tmp_path, "flow")
        (tmp_path / "large").write_bytes(b"\xff" * 200_000)
        give(page, "TEXT", tmp_path / "large")
        assert "200000" in send(page)


def test_every_type(browser: Browser, server: Running, tmp_path: Path) -> None:
    values = {
        "BOOL": "true false", "UINT8": "0 255", "UINT64": "0 18446744073709551615", "INT8": "-128 127",
        "INT64": "-9223372036854775808 1", "FP16": "0.5 -65504", "FP32": "1e-20 3.5", "FP64": "0.1 nan",
        "STRING": "a\nü",
    }  # fmt: skip
    with model_page(browser, server, "everything") as page:
        for name in TYPES:
            page.evaluate(f"{field(name)}.querySelector('.tick input').click()")
            write(page, name, values[name])
        answer = send(page).replace("\t", " ")
        shown = ["true", "false", "255", "18446744073709551615", "-128", "-9223372036854775808", "-65504", "1.000e-20"]
        for text in (*shown, "0.1", "NaN", "ü", "OUT_FP16 FP16 [2, 1]"):
            assert text in answer
        for language in ("curl", "python", "javascript"):
            text = program(page, language)
            for name, data in tensor_files(page).items():
                (tmp_path / name).write_bytes(data)
            printed = run(language, text, tmp_path)
            if language == "curl":
                printed = (tmp_path / "answer.bin").read_text(errors="replace")
            assert "OUT_FP64" in printed, (language, text, printed)
            assert language != "python" or "-6.55e+04" in printed


def test_a_program_reads_many_values_from_a_file_that_the_page_saves(
    browser: Browser, server: Running, tmp_path: Path
) -> None:
    with model_page(browser, server, "everything") as page:
        page.evaluate(f"{field('FP32')}.querySelector('.tick input').click()")
        write(page, "FP32", "0 " * 1499 + "7.5")
        text = program(page, "python")
        (tmp_path / "FP32.bin").write_bytes(tensor_files(page)["FP32.bin"])
        assert "7.5" in run("python", text, tmp_path)


def test_large_answers_are_shortened(browser: Browser, server: Running, tmp_path: Path) -> None:
    np.save(tmp_path / "map.npy", np.arange(2 * 40_000, dtype=np.float32).reshape(2, -1))
    with model_page(browser, server, "everything") as page:
        page.evaluate(f"{field('FP32')}.querySelector('.tick input').click()")
        give(page, "FP32", tmp_path / "map.npy")
        answer = send(page)
        assert "[1]\t40000\t40001\t40002" in answer
        assert "32 of 80,000 values. Least 0, highest 79999 (at 79,999), mean 39999.5." in answer


def test_numpy_and_raw_files(browser: Browser, server: Running, tmp_path: Path) -> None:
    values = np.arange(16, dtype=np.int32)
    np.save(tmp_path / "a.npy", values)
    np.save(tmp_path / "wrong.npy", values.astype(np.int64))
    np.save(tmp_path / "objects.npy", np.array([{}], object), allow_pickle=True)
    (tmp_path / "b.raw").write_bytes(values.tobytes())
    (tmp_path / "empty").touch()
    (tmp_path / "odd").write_bytes(b"12345")
    (tmp_path / "bad.png").write_bytes(b"no picture")
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(GIB)
    with model_page(browser, server, "add_sub") as page:
        give(page, "INPUT0", tmp_path / "a.npy")
        give(page, "INPUT1", tmp_path / "b.raw")
        assert "OUTPUT0 INT32 [1, 16]\n0\t2\t4" in send(page)
        paste_all(page, tmp_path, "30")
        for name, text in {
            "wrong.npy": "wrong.npy holds INT64, and INPUT1 expects INT32: save it with a.astype(...)",
            "objects.npy": 'objects.npy holds Python objects: save strings with a.astype("S") instead',
            "empty": "empty is empty (0 bytes): choose another file.",
            "odd": "odd has 5 bytes, no multiple of the 4 bytes of a value of INPUT1 (INT32)",
            "bad.png": "bad.png is a picture, and INPUT1 (INT32 [-1, 16]) has not the shape of one",
            "sparse": "sparse has 1.0 GiB, and this page sends files of up to 64 MiB",
        }.items():
            give(page, "INPUT1", tmp_path / name)
            assert text in problem(page)
            assert page.evaluate("performance.memory.usedJSHeapSize") < 100 << 20
        assert "The request was not sent" in send(page)
        assert "this page sends files of up to 64 MiB" in send(page)
    with model_page(browser, server, "chw") as page:
        give(page, "IMAGE", tmp_path / "bad.png")
        assert "bad.png is not a picture that this browser can read" in problem(page)


def test_a_model_that_fails_says_so(browser: Browser, server: Running, tmp_path: Path) -> None:
    with model_page(browser, server, "fails") as page:
        answer = send(page)
        assert "The model or the server failed (after " in answer
        assert f"the lens is {EVIL}" in answer
        page.screenshot(tmp_path / "page.png")
        page.wait_for("document.querySelector('#model').innerText.includes('1 in all')")
        page.complaints[:] = [one for one in page.complaints if "500" not in one]  # the browser's own word on it


def test_a_decoupled_model_streams(browser: Browser, server: Running, tmp_path: Path) -> None:
    with model_page(browser, server, "stream") as page:
        write(page, "TEXT", "one two three")
        answer = send(page)
        assert "3 answers in " in answer
        assert "WORD: two" in answer
        # as a string: JavaScript would round whole numbers beyond 2^53
        assert f"body: {json.dumps(json.dumps({'TEXT': 'one two three'}, separators=(',', ':')))}" in program(
            page, "javascript"
        )
        paste_all(page, tmp_path, "one", "two", "three")


def test_a_decoupled_model_without_grpc(browser: Browser, tmp_path: Path) -> None:
    write_models(tmp_path / "models")
    flags = ("--model-control-mode=explicit", "--load-model=stream")
    with (
        running(f"--model-repository={tmp_path / 'models'}", *flags) as server,
        model_page(browser, server, "stream") as page,
    ):
        write(page, "TEXT", 'one "two"')
        printed = run("python", program(page, "python"), tmp_path)
        assert "'WORD': 'one'" in printed
        assert "'WORD': '\"two\"'" in printed


def test_a_sequence_is_continued_on_the_page(browser: Browser, server: Running, tmp_path: Path) -> None:
    with model_page(browser, server, "sums") as page:
        write(page, "INPUT", "20")
        assert "\n20\n" in send(page)
        write(page, "INPUT", "3")
        assert "\n23\n" in send(page)
        page.evaluate("document.querySelectorAll('.options .tick input')[0].click()")
        paste_all(page, tmp_path, "3")


def test_a_model_is_unloaded_and_loaded_after_a_question(browser: Browser, server: Running) -> None:
    with model_page(browser, server, "add_sub") as page:
        page.evaluate("document.querySelector('.manage .danger').click()")
        page.wait_for("document.querySelector('dialog').innerText.includes('Unload add_sub?')")
        page.press("Escape")
        page.wait_for("!document.querySelector('dialog')")
        page.evaluate("document.querySelector('.manage .danger').click()")
        page.wait_for("!!document.querySelector('dialog .primary')")
        page.press("Enter")
        page.wait_for("document.querySelector('.top .pill').textContent === 'Unloaded'")
        page.evaluate("document.querySelector('.manage button').click()")
        page.wait_for("!!document.querySelector('dialog .primary')")
        page.press("Enter")
        page.wait_for("document.querySelector('.top .pill').textContent === 'Ready'")
        page.wait_for("document.querySelector('.manage').innerText.includes('add_sub was loaded.')")
        page.wait_for("!!document.querySelector('form.try')")


def test_settings_change_after_a_question(browser: Browser, server: Running) -> None:
    page = browser.page()
    page.open(f"http://{server.url}/ui")
    page.wait_for("!!document.querySelector('.settings input')")
    page.wait_for("document.querySelector('.settings input').value === '0'")
    page.evaluate("document.querySelector('.settings input').value = '1'")
    page.evaluate("document.querySelector('.settings').requestSubmit()")
    page.wait_for("document.querySelector('dialog').innerText.includes('log_verbose_level: 0 → 1')")
    page.press("Enter")
    page.wait_for("document.querySelector('.settings').innerText.includes('Changed.')")
    assert json.loads(server.get("/v2/logging")[1])["log_verbose_level"] == 1
    assert server.post("/v2/logging", {"log_verbose_level": 0})[0] == 200
    assert page.complaints == []
    page.close()


def test_a_model_that_failed_has_a_page(browser: Browser, server: Running) -> None:
    page = browser.page()
    page.open(f"http://{server.url}/ui#model/broken")
    page.wait_for("document.querySelector('#model .banner')?.innerText.includes('no camera')")
    assert page.evaluate("!document.querySelector('#model form.try')")
    assert "Failed" in page.text()
    page.close()


def test_a_model_that_hangs_can_be_left(browser: Browser, server: Running) -> None:
    with model_page(browser, server, "sleeps") as page:
        page.evaluate("document.querySelector('form.try').requestSubmit()")
        page.wait_for("document.querySelector('.top .pill').textContent.startsWith('Busy for 1')")
        assert "Waiting for 1" in page.text()
        assert "A batch has been running for 1" in page.text()
        page.evaluate("[...document.querySelectorAll('form.try button')].find(one => one.innerText === 'Stop').click()")
        page.wait_for("document.querySelector('.result').innerText.includes('The request was stopped.')")


def test_each_role_sees_what_it_may_do(browser: Browser, tmp_path: Path) -> None:
    write_models(tmp_path / "models")
    tokens = {role: new_token(tmp_path / "tokens", role, role.word) for role in (Role.READ, Role.INFER, Role.ADMIN)}
    flags = ("--model-control-mode=explicit", "--load-model=add_sub", f"--token-file={tmp_path / 'tokens'}")
    with running(f"--model-repository={tmp_path / 'models'}", *flags) as server:
        for role, token in tokens.items():
            page = browser.page()
            page.open(f"http://{server.url}/ui#model/add_sub")
            page.evaluate("sessionStorage.clear()")
            page.wait_for("!!document.querySelector('.banner form') && !document.querySelector('form.try')")
            page.evaluate(f"document.querySelector('.banner input').value = {token!r}")
            page.evaluate("document.querySelector('.banner form').requestSubmit()")
            page.wait_for("!!document.querySelector('#model .signature')")
            sees = page.evaluate(
                "[!!document.querySelector('form.try'), !document.querySelector('.manage').hidden, "
                "document.body.innerText.includes('use a token with the role infer')]"
            )
            assert sees == [role >= Role.INFER, role is Role.ADMIN, role is Role.READ]
            if role is Role.INFER:
                assert "2 outputs of version 1" in send(page)
                text = program(page, "curl")
                assert token not in text
                assert '"OUTPUT0"' in run("curl", f"export EDGE_SERVE_TOKEN={token}\n{text}", tmp_path)
                page.evaluate("location.hash = ''")
                page.wait_for("document.body.innerText.includes('Your role')")
                assert page.evaluate("document.querySelector('#settings').hidden")
            page.close()
