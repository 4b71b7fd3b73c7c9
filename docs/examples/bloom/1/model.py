"""Text generation with Hugging Face transformers, piece by piece, for any causal language model.

Request parameters: max_tokens (64), temperature (0: always the likeliest token), and stream (true; false: one response
with the whole text, as the route `generate` needs it).
"""

import json

import numpy as np
import torch
import triton_python_backend_utils as pb_utils
from transformers import AutoModelForCausalLM, AutoTokenizer, StoppingCriteria, TextStreamer


class Pieces(TextStreamer):
    """Sends each piece of text as soon as it is sure that no later token changes it."""

    def __init__(self, tokenizer, send):
        super().__init__(tokenizer, skip_prompt=True, skip_special_tokens=True)
        self.send = send

    def on_finalized_text(self, text, stream_end=False):
        if text:
            self.send(text)


class ClientLeft(StoppingCriteria):
    """Ends the generation when nobody reads it any more."""

    def __init__(self, sender):
        self.sender = sender

    def __call__(self, input_ids, scores, **kwargs):
        return torch.full((len(input_ids),), self.sender.is_cancelled(), device=input_ids.device)


class TritonPythonModel:
    def initialize(self, args):
        given = json.loads(args["model_config"])["parameters"]["pretrained"]["string_value"]
        pretrained = given.replace("$$TRITON_MODEL_DIRECTORY", args["model_repository"])
        self.tokenizer = AutoTokenizer.from_pretrained(pretrained)
        self.model = AutoModelForCausalLM.from_pretrained(pretrained).eval()

    def execute(self, requests):
        for request in requests:
            self.generate(request, request.get_response_sender())

    def generate(self, request, sender):
        prompt = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()[0].decode()
        given = json.loads(request.parameters())
        temperature = float(given.get("temperature", 0))
        pieces = []

        def send(text):
            tensor = pb_utils.Tensor("text_output", np.array([text.encode()], dtype=object))
            sender.send(pb_utils.InferenceResponse([tensor]))

        with torch.inference_mode():
            tokens = self.tokenizer(prompt, return_tensors="pt")
            self.model.generate(
                input_ids=tokens["input_ids"],
                attention_mask=tokens["attention_mask"],
                max_new_tokens=int(given.get("max_tokens", 64)),
                do_sample=temperature > 0,
                temperature=temperature or None,
                streamer=Pieces(self.tokenizer, send if given.get("stream", True) else pieces.append),
                stopping_criteria=[ClientLeft(sender)],
            )
        if not given.get("stream", True):
            send("".join(pieces))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
