"""HTTP/2 (RFC 9113), the server's side: a state machine without sockets. Start reading in `connection`.

allowance   token bucket against floods of cheap frames
connection  one connection: frames in, calls to its streams out
data        reads DATA frames within the receive windows
frames      builds and parses frames; the error codes and exceptions
heads       HPACK decoder with a memo of request heads, and the encoder
send        writes DATA frames within the client's windows
stream      one stream: a request and its answer
streams     the table of a connection's streams, and how each of them closes
"""
