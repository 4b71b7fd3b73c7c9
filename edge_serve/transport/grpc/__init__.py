"""gRPC connections and calls on a socket, for any service. Start reading in `connection`.

call        one call: its request messages, its answer, its deadline
call_head   methods, and request heads: method, deadline, encoding, access
connection  one client's connection: a socket, an HTTP/2 state machine, a send queue
deflater    compresses the messages of one call, in order
door_state  limits of a gRPC door, and the state that its connections share
inflater    inflates compressed messages, and prepares large ones, in order
keepalive   decides when to ping a client, when to close its connection, and when it pings too often
large       decodes large messages in ordinary memory in a thread
messages    cuts the bytes of a stream into messages
options     converts the `--grpc-*` settings into the door's values
"""
