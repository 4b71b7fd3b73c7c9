"""The worker process: `main` starts it. Imports the standard library and NumPy only.

calling         the worker's side of calls to other models
cancellations   cancelled requests of one instance
forks           what a worker sees to when its model forks
instance        one instance in the worker
main            the worker's side
mismatch        compares the outputs that a model returns with its configuration, and reports each output that
own_threads     threads of a worker that run no code of a model's
paused_streams  streams of a decoupled model that stand still because their clients read too slowly
process         what every child process of the server does
remote          what the worker asks of and tells the front end
states          implicit state
"""
