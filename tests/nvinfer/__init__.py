"""TensorRT's own Python bindings over a stand-in libnvinfer.

They show what NVIDIA's code does between our backend and the library.

genuine        installs the bindings into the cache of the tests, and builds the stand-in beside them
library        the stand-in that a process has loaded
streams        connects the stand-in to the devices of the host CudaApi
nvinfer.cpp    the stand-in: interface*.hpp (what the bindings call), plan, operations, device, context
checks         what a module `tensorrt` does, in a process of its own: one suite for them and the Python stand-in
session        what the checks are written with
load           10,000 executions in four threads, and a count of what they leak
names          the names of a module `tensorrt`, and the parameters of its functions
"""
