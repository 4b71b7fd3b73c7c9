"""HTTP connections, and the applications that are not the v2 protocol. Start reading in `server`.

May import `transport/door`, `transport/sockets`, and every room below `transport`.

connection  a client's HTTP connection
cors        web pages of other origins as clients (CORS)
door_state  limits of a server, and the objects that its connections share
exchange    one request on a connection, and the methods to answer it
metrics     the metrics endpoint
page        the files of the status page
replies     error replies
server      the HTTP server, and the administration endpoint
"""
