"""The doors: HTTP and gRPC on asyncio. Decode, call the service, encode; errors become replies here and nowhere else.

May import every room below (docs/rooms.md); the service itself is handed in, as a `Protocol`. Start with `exchange.py`,
the seam between connections and what answers them; `door.py` lets clients in, `http.py` serves, `v2.py` answers. Over
gRPC `grpc_server.py` serves, `grpc_call.py` is the seam, and `grpc_infer.py`, `grpc_stream.py`, `grpc_calls.py` answer.

    door/          Doors
    grpc/          gRPC connections and calls on a socket
    grpc_service/  The calls of grpc_service
    http/          HTTP connections, and the applications that are not the v2 protocol
    sockets/       Sockets on the event loop
    v2/            The v2 protocol over HTTP
"""
