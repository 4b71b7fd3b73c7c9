"""Builds TensorRT engines from ONNX in a process of its own, and caches them. Start with `process` (ADR 28).

builder   the calls of TensorRT's builder: network, profiles, flags, timing cache
cache     the directory of built engines, found by a key of everything that they depend on
child     the process that builds one engine: `python -m edge_serve.engines.child`
model     the request for a model of a repository, from its configuration
options   the options of a build, as words of the command line or of a configuration
process   starts the child process, reads its progress, and kills it
profiles  the optimization profiles of a build, from shapes that are given or from a configuration
request   the request to the child process and its answer, as plain values
settings  where engines are cached, and how long a build may take
timing    the timing cache of TensorRT: a file that builds share
"""
