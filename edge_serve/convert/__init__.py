"""`edge-serve convert`: makes TensorRT models from an ONNX file in several precisions, and compares them with it.

Start with `command`.

    candidate  one precision: its plan, and the directory of its model
    command    its options, the table, and the exit status
    samples    real inputs from a file of NumPy
    trial      runs a model on the samples: its outputs, latency, and device memory
"""
