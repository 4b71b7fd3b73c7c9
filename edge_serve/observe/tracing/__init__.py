"""Traces of requests in Triton's format: which requests are traced, and the files that the traces go to.

    files    writes the trace files
    setting  one trace setting in force, of the server or of a model
    tracing  decides which requests are traced

Imports only layer 0. Start reading in `tracing`.
"""
