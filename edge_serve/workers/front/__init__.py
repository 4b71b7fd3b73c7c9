"""The front end's side of the workers. Start reading in `pool`.

bls_broker  what the models of one worker ask of other models
channel     batches to one instance and their replies
free_cores  how many cores the other programs of the machine leave to this server
inputs      inputs that lie in ordinary memory
link        what the channels of one opened model share, and who listens to them
opened      an opened model as its driver sees it
output      what models print
placement   the instances of a model that live in one worker, and what is sent and said of them
pool        the room's face
process     one worker process
selector    the event loop's selector, which polls for a worker's reply before it goes to sleep (ADR 17)
sending     the send queue of a worker's control channel
worker      a worker that lives on
"""
