"""Traces of requests in Triton's format: which requests are traced, and the files that the traces go to.

Imports only layer 0. Start reading in `tracing`.

    files    trace files
    setting  one trace setting in force
    tracing  which requests are traced
"""
