"""Codec processes: decode and encode JSON that would block the event loop. `main` runs in the process.

codec     pool of codec processes, front-end side
job       jobs of codec processes, and the memory that they use
main      program of a codec process
messages  wire format between the front end and a codec process
"""
