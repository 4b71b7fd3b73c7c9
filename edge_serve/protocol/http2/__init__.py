"""HTTP/2, the server's side (RFC 9113). Start reading in `connection`.

allowance   how much a client may ask for that costs us something and it nothing
connection  the server's side of an HTTP/2 connection (RFC 9113)
data        receiving DATA (RFC 9113 6.1)
frames      the frames of HTTP/2 (RFC 9113 section 4 and 6) as bytes, and the two ways in which a peer can be
heads       header blocks of one connection
send        the sending half of a connection
stream      one stream of a connection
streams     the streams of one connection, and how they end
"""
