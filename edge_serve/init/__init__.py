"""`edge-serve init`: writes the directory of a new model, for an ONNX file, a Python model or an ensemble.

`command` has the options and the closing message; `onnx_file`, `python_model` and `ensemble` each make one kind of
model; `config_text` writes config.pbtxt with comments; `directory` puts the files in place in one step.

    command       its options, and the message that says what was written and what to do next
    config_text   text of a new config.pbtxt, with comments that say what to change
    directory     the directory of a new model
    ensemble      a new ensemble
    example       an example request for a model, as a curl command that works
    onnx_file     a new model from an ONNX file
    python_model  a new Python model
"""
