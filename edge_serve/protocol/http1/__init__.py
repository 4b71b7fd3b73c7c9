"""HTTP/1.1: request heads and bodies from bytes, response heads into bytes.

body_buffer  ordinary memory for a body that arrives bit by bit
chunked      the chunked transfer coding, decoded as it arrives (RFC 9112 7.1)
errors       what can be wrong with a message on the wire
head         the head of an HTTP/1.1 request
reader       the receiving half of a connection, without the connection
response     the head of a response
"""
