"""`make hw-check`: what only an owner's hardware can show, in one report. Start with `check`.

bare_loop  inferences per second of a loop without a server, over ONNX Runtime or TensorRT
check      runs all steps and writes the report
facts      the machine, its GPU, and the installed packages, without anything that names the device or its owner
models     the measured models, as ONNX files with a free batch size
serving    a server under load, beside the bare loop
"""
