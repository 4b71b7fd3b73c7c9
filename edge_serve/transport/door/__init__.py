"""Doors: the parts that all listening endpoints share. They accept, admit, limit, and drain. Start reading in `door`.

May import `transport/sockets`, and every room below `transport`.

access          access checks for the clients of all doors
body_admission  admission of the request bodies of one connection
body_memory     memory budget for incoming request bodies, shared by all connections of all doors
door            base class of all doors: accepting, TLS handshakes, connection limits, sweeps, draining, handover
eviction        choice of the idle connections that a full door closes
exchange        interfaces between an HTTP connection and the application that answers its requests
listeners       listening sockets (TCP, UNIX, or passed by systemd), and accepting from them
reloaded        a value that is made from files, and made again when they change
shared_limits   limits that all doors of a server share
"""
