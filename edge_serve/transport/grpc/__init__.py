"""gRPC connections and calls on a socket. Start reading in `connection`.

call        one gRPC call
call_head   what a request head says about a gRPC call, worked out once per head
connection  one client's gRPC connection
deflater    the messages of a call that are compressed
door_state  what all gRPC connections of a door use together, and what they are given at most
keepalive   when a connection is asked whether its client is there, when it is too old, and when a client asks
large       large messages in ordinary memory (typed contents, compressed ones)
messages    the bytes of a gRPC stream as messages
methods     the two kinds of methods that a call may be of, and what answers them
options     the `--grpc-*` settings as what the gRPC door needs
"""
