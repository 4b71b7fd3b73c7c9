"""docs/examples/bloom generates text: with a tiny model of random weights, against the same model alone.

Needs torch and transformers (`pip install --group generative`); skipped with that reason otherwise.
"""

from __future__ import annotations

import http.client
import importlib.util
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.running import PATIENCE, Running, running

MISSING = [name for name in ("torch", "transformers", "tokenizers") if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore"),  # their own
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}; pip install --group generative"),
]
EXAMPLE = Path(__file__).parents[2] / "docs/examples/bloom"
PROMPT = "the weather is fine"
TOKENS = 24


def make_weights(directory: Path) -> str:
    """A BLOOM with two small layers and random weights, and a tokenizer of letters; what it makes of PROMPT: words."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import BloomConfig, BloomForCausalLM, PreTrainedTokenizerFast

    alphabet = sorted(set(PROMPT.replace(" ", "Ġ")))  # as the byte level writes blanks
    tokenizer = Tokenizer(models.BPE({letter: number for number, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    fast.save_pretrained(directory)
    config = BloomConfig(
        vocab_size=len(alphabet), hidden_size=32, n_layer=2, n_head=2, bos_token_id=None, eos_token_id=None,
        pad_token_id=0, initializer_range=0.5,
    )  # fmt: skip
    tokens = fast(PROMPT, return_tensors="pt")
    for seed in range(1000):
        torch.manual_seed(seed)
        model = BloomForCausalLM(config).eval()
        with torch.inference_mode():
            made = model.generate(
                input_ids=tokens["input_ids"], attention_mask=tokens["attention_mask"], max_new_tokens=TOKENS,
                do_sample=False,
            )  # fmt: skip
        text = str(fast.decode(made[0, tokens["input_ids"].shape[1] :], skip_special_tokens=True))
        if len(text.split()) > 1:  # else it comes in one piece
            model.save_pretrained(directory)
            return text
    raise AssertionError("no seed makes words")


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, str]]:
    """Serve the example. Yield the server, and the text that the model makes without a server."""
    model = tmp_path_factory.mktemp("models") / "bloom"
    shutil.copytree(EXAMPLE, model, ignore=shutil.ignore_patterns("__pycache__"))
    text = make_weights(model / "weights")
    config = model / "config.pbtxt"
    config.write_text(config.read_text().replace("bigscience/bloom-560m", "$$TRITON_MODEL_DIRECTORY/weights"))
    with running(f"--model-repository={model.parent}") as server:
        yield server, text


def pieces(server: Running, **members: object) -> list[str]:
    """Return the text of each event."""
    status, body = server.post("/v2/models/bloom/generate_stream", {"text_input": PROMPT, **members})
    assert status == 200, body
    return [json.loads(event.removeprefix("data: "))["text_output"] for event in body.decode().split("\n\n") if event]


def test_the_text_comes_in_pieces_and_is_the_models_own(expected: tuple[Running, str]) -> None:
    server, text = expected

    found = pieces(server, max_tokens=TOKENS)

    assert "".join(found) == text
    assert len(found) > 1, "it came at once"


def test_one_response_for_generate(expected: tuple[Running, str]) -> None:
    server, text = expected

    status, body = server.post(
        "/v2/models/bloom/generate", {"text_input": PROMPT, "parameters": {"max_tokens": TOKENS, "stream": False}}
    )

    assert (status, json.loads(body)["text_output"]) == (200, text)


def test_a_client_that_leaves_ends_the_generation(expected: tuple[Running, str]) -> None:
    server, text = expected
    connection = http.client.HTTPConnection("127.0.0.1", server.http, timeout=PATIENCE)
    endless = json.dumps({"text_input": PROMPT, "max_tokens": 1_000_000})
    connection.request("POST", "/v2/models/bloom/generate_stream", endless)
    response = connection.getresponse()
    assert response.read(6) == b"data: "
    response.close()
    connection.close()

    assert "".join(pieces(server, max_tokens=TOKENS)) == text  # its only instance is free again


def test_temperature_samples(expected: tuple[Running, str]) -> None:
    server, text = expected

    assert any("".join(pieces(server, max_tokens=TOKENS, temperature=5.0)) != text for _ in range(5))
