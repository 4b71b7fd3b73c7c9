"""Sockets on the event loop: TLS, and the send queue.

backlog        how much of a stream may wait for its client
handshakes     TLS handshakes of accepted sockets, without blocking
loop_socket    a client's socket on the event loop, and the same over TLS: what both kinds of connections are
send_queue     what a connection still has to send
stream_socket  what a connection needs of its socket
tls            TLS over the bare sockets of our doors (docs/adr/0013)
"""
