"""Tensor memory and clients' shared memory: the front end's side. The worker's side is `child/memory/`.

arena          a model's tensor memory, divided into slots; returns it when unused
arena_exports  lends a worker the arenas of other models, and clients' regions
cuda_regions   clients' memory of GPUs: handles, tried by a process
extents        free-space map of an arena
pages          memory for an arena's pages, and their return to the kernel
pinned         pages that workers have registered with a device, which are not returned
regions        clients' shared memory regions by name, of the system and of GPUs
"""
