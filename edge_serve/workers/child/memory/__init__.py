"""Memory of other processes that a worker maps.

arena_imports   arenas of other models, and clients' shared memory
shared_request  the tensors of one request that lie in clients' shared memory
"""
