"""General tools for asyncio programs. Nothing in this room knows models, requests or sockets.

    offload    runs a blocking function in a daemon thread; the event loop goes on meanwhile
    callbacks  calls the callbacks of other parts of the program; one that raises is logged, and its caller goes on
    turns      long work on the loop in pieces, between which other callbacks have their turn
    limited    a time limit for a blocking call outside of an event loop
    sink       a bounded queue that one daemon thread writes out: no caller waits for a disk or a pipe
    tasks      starts background tasks, keeps references to them, and logs one that fails

Imports the standard library only. Start reading in `offload`.

    bulk_copy          work on many bytes, beside the event loop when it would hold that up
    memo               a dictionary that evicts its oldest entry when it is full
    pausable_deadline  a time limit for work that may have to stand still through no fault of its own
"""
