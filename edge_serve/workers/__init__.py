"""The processes in which models run, and the memory that they share with the front end.

A path says in which process a line runs: `child/` in the worker; `front/`, `launch/` and `memory/` in the front end;
`wire/` in both. `child/` imports `wire/` only, besides lower layers; the front end's folders never import `child/`.
The worker imports no library but NumPy and those of its backend (`tests/test_layers.py`). Start in
`front/workers`.

    child/   the worker process
    codec/   codec processes: decode and encode JSON that would hold the event loop
    front/   the front end's side: placement of models in workers, batches and replies
    launch/  starts a worker: interpreter, sandbox, control group, lifetime pipe
    memory/  tensor memory that workers map, and clients' shared memory regions: the front end's side
    wire/    formats of the frames that the front end and a worker exchange
"""
