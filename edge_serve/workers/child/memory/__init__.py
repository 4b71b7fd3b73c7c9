"""Memory of the front end and of other processes that a worker maps.

arena_imports       arenas of other models, and clients' shared memory
cuda_client_region  a client's memory of a GPU
cuda_probe          opens such memory once, for its registration
input_arena         the arena as inputs see it, which a model may keep
output_room         the slot for the large outputs of one frame
shared_request      the tensors of one request that lie in clients' shared memory
"""
