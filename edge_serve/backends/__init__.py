"""Backends: the classes that turn a batch into replies, in a worker process. `loader` finds one by its name.

cuda/         the calls of CUDA that backends use
onnxruntime/  ONNX models on the CPU, CUDA, TensorRT, or OpenVINO
python/       models written in Python (`model.py`)
python_path/  the modules that Python models import: a directory for their `sys.path`
tensorrt/     plans of TensorRT on NVIDIA GPUs
base          the interface of a backend
binding_plan  the part of a run that is the same for every batch of a model
file_kinds    the kind of a file that is no model, from its first bytes
host          the services of the hosting process: log lines, metrics, calls of other models
loader        finds a backend by its name
packs         directories with a backend, and perhaps its own interpreter
parameters    the parameters of a configuration, and the values in their texts
privacy       environment variables that stop inference libraries from reporting to their makers
"""
