"""Readers and checkers of everything that is configured: models (`config.pbtxt`) and the server (argv, environment).

Model side, in the order of a load: `text` and `json_form` read and write a ModelConfig, `normalise` fills in defaults,
`checks` (and `checks_*`) refuse what cannot work, `complete` merges what an ONNX file tells (worker side, plain dicts),
`signature` hands plain values on; `model` does all of it for one model directory: start reading there.
Server side: `server` has the one table of settings (the annotated fields of ServerConfig), `settings` reads argv by it,
`setting_kinds` and `server_values` know how values are written, `server_docs` prints the docs page.
Imports only `errors`, `tensors` and `messages`.

    checks/    Checks of a model configuration, in Triton's words
    model/     The model configuration
    settings/  The server's settings
    signature  what a loaded model accepts and returns, and the class labels of its outputs
    stages     from a model directory to a configuration that can be served
"""
