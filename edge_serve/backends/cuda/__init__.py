"""The calls of CUDA that backends use (ADR 25). Worker's side. Start with `api`.

api       the interface `CudaApi`, its error, and the choice of an implementation
bindings  `CudaApi` over NVIDIA's `cuda-bindings`
pycuda    `CudaApi` over PyCUDA, without graphs
"""
