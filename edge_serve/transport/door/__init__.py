"""Doors: what every listening endpoint does. It accepts, admits, limits, and drains. Start reading in `door`.

accepting       accepts connections from listening sockets, and waits while the system has no descriptor for
access          what the doors ask about their clients
body_admission  what lets the bodies of one connection in
body_memory     memory for the bodies of requests that are on their way in, shared by all connections of all
door            what every door does
eviction        which idle connections a full door closes, so that one address cannot shut out all others
exchange        the seam between an HTTP connection and what answers its requests
handover        how a door says goodbye when another process takes its sockets over
listeners       sockets that wait for clients
reloaded        a value made from files, made again when they change
shared_limits   limits that all doors of a server share
"""
