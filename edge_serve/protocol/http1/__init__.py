"""HTTP/1.1: request heads and bodies from bytes, response heads into bytes. Start reading in `reader`.

May import layer 0 only.

body    the decoder of the chunked transfer coding, and ordinary memory for bodies
errors  errors of malformed or refused messages, each with its HTTP status
head    the heads of requests and responses
reader  the receiving half of a connection, without a socket
"""
