"""Ensembles: a request passes through several models instead of going to a worker. Start reading in `ensemble`.

ensemble  the runner of an ensemble
flight    one request of an ensemble, also with decoupled members
member    makes the requests of a step, also in shared memory, and reads sequence IDs from its responses
"""
