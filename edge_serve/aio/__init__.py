"""General tools for asyncio programs. Nothing in this room knows models, requests or sockets.

    bulk_copy          work on many bytes, beside the event loop when it would hold that up
    memo               a dictionary that evicts its oldest entry when it is full
    offload            runs a blocking function in a daemon thread
    pausable_deadline  a timeout that can be paused
    sink               a bounded queue that one daemon thread writes out: no caller waits for a disk or a pipe
    tasks              background tasks, callbacks that may raise, and long work in pieces, on the event loop
    within             a time limit for a blocking function where no event loop waits for it

Start reading in `offload`.
"""
