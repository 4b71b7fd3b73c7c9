"""The calls of CUDA that backends use (ADR 25), and the way of tensors to a device and back (ADR 26). Worker's side.

Start with `api` for the calls, with `tensor_path` for the copies.

api               the interface `CudaApi`, its error, and the choice of an implementation
bindings          `CudaApi` over NVIDIA's `cuda-bindings`
device_buffers    buffers in the memory of a device, one for each tensor of a batch
device_data       tensors' bytes in the memory of a GPU, and copies from and to it
memory            memory of a device and pinned memory, with advice where there is not enough
path_settings     the settings of a configuration that say how tensors are copied
pinned_buffer     pinned host memory that grows
pycuda            `CudaApi` over PyCUDA, without graphs
registered_arena  the part of a model's arena that is registered with a device
tensor_path       copies between requests and a device, for up to two batches at once
"""
