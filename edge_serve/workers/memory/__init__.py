"""Tensor memory that the front end and workers share, and shared memory of clients.

arena           tensor memory
client_region   a client's shared memory as a worker reads and writes it
extents         free-space map of an arena
regions         system shared memory of clients, as the front end holds it
shared_arenas   tensors in other models' arenas, which the steps of an ensemble hand to each other without a
shared_request  the tensors of one request that lie in clients' shared memory
trimming        housekeeping of tensor memory
"""
