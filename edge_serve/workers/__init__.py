"""The processes in which models run, and the memory that they share with the front end.

A path says in which process a line runs: `child/` in the worker, `front/`, `launch/` and `watch/` in the front end,
`wire/` and `memory/` in both. What a worker runs imports the standard library and NumPy only (`tests/test_layers.py`).
May import layers 0 to 2. Start reading in `front/pool`.

    child/   the worker process
    codec/   codec processes: decode and encode JSON that would hold the event loop
    front/   the front end's side: which worker holds which model, batches and replies
    launch/  starts a worker: interpreter, sandbox, control group, end
    memory/  tensor memory that the front end and workers share, and shared memory of clients
    watch/   which workers hang, and when one that died is started again
    wire/    the frames that the front end and a worker exchange
"""
