"""HTTP and gRPC endpoints on asyncio. They decode requests, call the service, and encode its responses and errors.

May import every room below (docs/rooms.md); the service is passed in, as a `Protocol`. Over HTTP start with
`door/exchange.py`, the interface between connections and applications: `door/door.py` admits clients, `http/server.py`
serves them, `v2/application.py` answers. Over gRPC `grpc_service/server.py` serves, `grpc/call.py` is the interface,
and the other files of `grpc_service` answer.

    door/          parts that all listening endpoints share
    grpc/          gRPC connections and calls on a socket
    grpc_service/  the gRPC methods of the service
    http/          HTTP connections, and the applications that are not the v2 protocol
    sockets/       client sockets on the event loop, with or without TLS
    v2/            the v2 protocol over HTTP
"""
