"""Observation of the server: metrics, traces, the status document, and the log.

    log/      the log: lines of text, JSON, or entries of systemd's journal
    metrics/  metrics for Prometheus
    status/   the state of the server as one JSON document, and the programs that show it
    tracing/  traces of requests in Triton's format

Each folder has a layer of its own: `metrics` and `tracing` lie below the models, `log` and `status` at the top.
"""
