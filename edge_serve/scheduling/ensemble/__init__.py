"""The schedule of an ensemble: which steps a request needs, and which of them may run now.

plan    the plan of an ensemble, and the run of one request
stream  the run of one request with decoupled members
"""
