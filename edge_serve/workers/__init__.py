"""The processes in which models run, and the memory that they share with the front end.

    front end                                          worker process (`python -m edge_serve.workers.child.main`)
    pool      Workers: the room's face                 main      starts, dispatches control frames, ends
    opened    OpenedModel: its instances come and go
    worker    holds models, is restarted               instance  receives a batch, calls the backend, replies
    process   one process: spawn, control, exit        remote    what the backend asks of the front end
    desk      calls of other models (BLS)              calling   calls of other models (BLS)
    channel   batches to one instance and back (`link`: what a model's channels share)
    arena     slots of the shared tensor memory (`extents`: which pages are free; `trimming`: returns idle ones)
    beside    copies of many bytes, in threads
    restart   when a worker is started again (pure)
    hangs     which model hangs (`stalls`: for how long things have not moved)
    cgroups   control groups and memory limits of processes
    leash     ends a process's children with it, and all with the front end (`forks`: when models fork)
    part      the instances of a model in one worker
    output    what models print
    environments  a model's own interpreter (`unpack`: from an archive, `launcher`: how a worker starts with it)

Both sides speak `frames` (kinds, control messages), `execute` and `reply` (batches, laid out as in `layout`), `calls`.
Those and the worker's column import the standard library and NumPy only. May import layers 0 to 2.
Start reading in `pool`.
"""
