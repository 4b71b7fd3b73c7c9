"""HTTP/1.1: request heads and bodies from bytes, response heads into bytes. Start reading in `reader`.

May import layer 0 only.

body_buffer  ordinary memory for a body that arrives in parts
chunked      incremental decoder of the chunked transfer coding (RFC 9112 7.1)
errors       errors of malformed or refused messages, each with its HTTP status
head         the head of an HTTP/1.1 request
reader       the receiving half of a connection, without a socket
response     the head of a response
"""
