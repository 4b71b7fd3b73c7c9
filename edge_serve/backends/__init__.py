"""Backends: the classes that turn a batch into replies, in a worker process. `loader` finds one by its name.

onnxruntime/  The backend `onnxruntime`
python/       The backend `python`
python_path/  the modules that Python models import
base          what a backend is
echo          a backend for tests and benchmarks
host          what a backend may ask of the process that hosts it
loader        finds a backend by its name
privacy       environment variables that stop inference libraries from reporting to their makers
"""
