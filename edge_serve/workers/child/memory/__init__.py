"""Memory of other processes that a worker maps.

arena_imports   arenas of other models and clients' regions that the front end lends this worker
client_region   reads and writes a client's shared memory
shared_request  the tensors of one request that lie in clients' shared memory
"""
