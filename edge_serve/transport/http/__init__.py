"""HTTP connections, and the applications that are not the v2 protocol. Start reading in `server`.

admin       the door for administration
connection  one client's connection
cors        lets web pages of other origins read answers
door_state  the states of a connection, and what all connections of a server use together
exchange    one request on a connection, and the way to answer it
limits      what one HTTP server gives to its clients, at most
metrics     the metrics door
page        the files of the status page
replies     error replies, made here and nowhere else
server      the HTTP server
"""
