"""The backend `onnxruntime`: ONNX models on the CPU, CUDA, TensorRT, or OpenVINO. Start reading in `backend`.

advice        advice on an ONNX file that does not load
backend       opens a model and its instances
errors        the library's errors in Triton's words, with advice where a GPU is the cause
external      checks the external data of an ONNX file
gpu_instance  one instance on a GPU: copies a batch to the device, and outputs back
gpu_session   a session on a stream of its own, and its bindings to memory of the device
instance      one instance: joins a batch, runs it, and takes the outputs apart
libraries     why a provider cannot be used, and what to install
providers     execution providers and their options from a configuration (pure, without the library)
session       creates sessions, asks them what they are, and runs them
settings      the session's settings from a configuration (pure, without the library)
"""
