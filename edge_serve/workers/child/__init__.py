"""The worker process; `main` starts it. Imports `wire/` and lower layers: the standard library and NumPy only.

batch           reads EXECUTE frames, writes REPLY and PARTIAL frames
calling         pending calls from a model to other models, and the memory for their inputs
cancellations   marks of requests whose clients have disconnected
forks           handlers for a model's forks: signals, and the state that a child must not share
instance        one instance: receives a batch, calls the backend, sends the replies; polling (ADR 17)
lifetime_guard  ties the process to the front end's lifetime pipe
main            loads models, starts their instances, and serves the control channel
memory/         slots for outputs; memory of other models and of clients that a worker maps
mismatch        compares a model's outputs with its configuration, and reports each difference once
own_threads     threads that run no code of a model
paused_streams  streams of a decoupled model that wait for a slow client
pipelined       an instance that begins a batch while the one before runs: two threads (ADR 26)
process         setup of every child process: control channel, sender of frames, signals, limits, log
remote          questions and messages from the worker to the front end
states          implicit state of sequences
"""
