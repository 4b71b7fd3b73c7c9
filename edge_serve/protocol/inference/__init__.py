"""The parts of inference requests that HTTP and gRPC share. Start reading in `validate`.

May import layer 0 only.

classification  the classification extension
compression     gzip and deflate bodies
cost            the coding that an event loop may do at once; a codec process does the rest
validate        checks of a request against the model's signature, with Triton's texts
"""
