"""Configuration of models (`config.pbtxt`) and of the server (argv, environment): readers, defaults, and checks.

    checks/    checks of a model configuration, in Triton's words
    model/     reading config.pbtxt and JSON, defaults, auto-completion, advice
    settings/  the server's settings: one table, read from argv and environment
    signature  the signature of a loaded model: inputs, outputs, class labels
    stages     the stages of a load, from a model directory to a configuration that can be served

Start reading in `stages` for models, in `settings/server` for the server.
"""
