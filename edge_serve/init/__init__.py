"""`edge-serve init`: writes the directory of a new model, for an ONNX file, a Python model or an ensemble.

`command` has the options and the closing message; `onnx_file`, `python_model` and `ensemble` each make one kind of
model; `config_text` writes config.pbtxt with comments; `directory` puts the files in place in one step.
"""
