"""The front end's side of the workers. Start reading in `workers`.

bls_broker    runs the calls that the models of one worker make to other models
busy_poll     busy polling (ADR 17): the policy, the count of free cores, the event loop's selector
channel       sends batches to one instance and receives their replies
frame_socket  sends and receives frames over the socket of a channel
frames/       the frames that the front end writes and reads
hangs         finds instances whose model hangs, and other things that stall
link          state that the channels of one opened model share, and its listener
opened        an opened model, as its driver uses it
output        writes what models print and log to the server's log
pending       a batch in flight, and copies of its inputs in the arena
placement     the instances of a model that live in one worker
process       one worker process and its control channel
restart       decides when a dead worker is restarted
worker        keeps a worker running: restarts the process and reopens its models
workers       opens models in workers: the entry point of this room
"""
