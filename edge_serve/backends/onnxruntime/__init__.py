"""The backend `onnxruntime`: ONNX models on the CPU, CUDA, TensorRT, or OpenVINO. Start reading in `backend`.

advice    advice on an ONNX file that does not load
backend   the backend `onnxruntime`
external  check of an ONNX file's external data
instance  one instance of an ONNX model
session   sessions
settings  what a configuration says about an ONNX Runtime session, as plain values
strings   BYTES for ONNX Runtime
"""
