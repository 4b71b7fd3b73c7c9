"""Tensor memory and clients' shared memory: the front end's side. The worker's side is `child/memory/`.

arena          a model's tensor memory, divided into slots
arena_exports  lends a worker the arenas of other models, and clients' regions
extents        free-space map of an arena
regions        clients' system shared memory regions
trimming       returns unused tensor memory to the system
"""
