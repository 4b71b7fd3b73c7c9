"""The backend `onnxruntime`: ONNX models on the CPU, CUDA, TensorRT, or OpenVINO. Start reading in `backend`.

advice    advice on an ONNX file that does not load
backend   opens a model and its instances
external  checks the external data of an ONNX file
instance  one instance: joins a batch, runs it, and takes the outputs apart
session   creates sessions and translates their errors into Triton's words
settings  the session's settings from a configuration (pure, without the library)
"""
