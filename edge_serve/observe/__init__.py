"""Observation of the server: metrics, traces, the status document, and the log.

log/      the journal of systemd as the log
metrics/  what Prometheus sees
status/   the state of the server as one JSON document, and what shows it
tracing/  traces of requests in Triton's format
"""
