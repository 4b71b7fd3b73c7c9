"""Client sockets on the event loop: TLS, send queue, and flow control. Start reading in `loop_socket`.

May import every room below `transport`.

backlog      flow control of a response stream: when to pause and to resume its sender
handshakes   non-blocking TLS handshakes of accepted sockets
loop_socket  a client's socket on the event loop, plain or TLS: the base class of connections
send_queue   the bytes that a connection has not sent yet
tls          TLS over bare sockets (docs/adr/0013)
"""
