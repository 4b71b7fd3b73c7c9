"""Ensembles: a request passes from member to member instead of to a worker.

ensemble       an ensemble at work
flight         one request on its way through an ensemble
member         a member of an ensemble
shared_memory  shared memory of clients in ensembles
stream         one request of an ensemble with decoupled members
traced         what a traced request leads to is traced too
"""
