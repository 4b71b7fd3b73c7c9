"""Readers and checkers of everything that is configured: models (`config.pbtxt`) and the server (argv, environment).

Model side, in the order of a load: `text` and `json_form` read and write a ModelConfig, `normalise` fills in defaults,
`checks` refuses what cannot work, `complete` merges what the model's own file tells (worker's side, plain dicts),
`signature` and `policy` hand plain values on; `model` does all of it for one model directory: start reading there.
Server side: `server` has the one table of settings (the fields of ServerConfig), `settings` reads argv by it.
Imports only `errors`, `tensors` and `messages`.
"""
