"""Client sockets on the event loop: TLS, send queue, and flow control. Start reading in `client_connection`.

May import every room below `transport`.

backlog            flow control of a response stream: when to pause and to resume its sender
client_connection  the base class of connections: a socket on the event loop, plain or TLS, and its phases
half_close         tells a client that has disconnected from one that only sends no more
handshakes         non-blocking TLS handshakes of accepted sockets
send_queue         the bytes that a connection has not sent yet
tls                TLS over bare sockets (docs/adr/0013)
"""
