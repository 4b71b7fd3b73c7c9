"""Codec processes: decode and encode JSON that would hold the event loop. `main` runs in the process.

codec     the front end's end of the codec processes
job       what a codec process is asked to do, and what becomes of the memory that the job is about
main      the codec's side
messages  what the front end and a codec process tell each other about one request or response
"""
