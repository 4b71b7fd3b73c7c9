"""HTTP/2 (RFC 9113), the server's side: a state machine without sockets. Start reading in `connection`.

connection  one connection: frames in, calls to its streams out
frames      builds and parses frames; the error codes and exceptions
heads       decodes and encodes header blocks
stream      one stream, and the sender of DATA frames within the client's windows
streams     the table of a connection's streams, their DATA frames, and the token bucket against floods
"""
