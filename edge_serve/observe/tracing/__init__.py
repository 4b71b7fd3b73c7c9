"""Traces of requests in Triton's format: which requests are traced, and the files that the traces go to.

    files    writes the trace files
    tracing  the trace settings of the server and of models, and which requests they trace

Start reading in `tracing`.
"""
