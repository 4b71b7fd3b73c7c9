"""`make hw-check`: what only an owner's hardware can show, in one report. Start with `check`.

bare_loop  inferences per second of a loop without a server, over ONNX Runtime or TensorRT
check      runs all steps and writes the report
facts      the machine, its GPU, and the installed packages, without anything that names the device or its owner
models     the measured models, as ONNX files with a free batch size
outcome    a step that is skipped, with the reason
programs   steps that run other programs: the tests, compute-sanitizer, and Triton's examples
readings   metrics of the GPU, also beside nvidia-smi's
serving    a server under load, beside the bare loop
verdicts   figures beside the limits that the project requires
"""
