"""Runs the requests of a version: the driver around a scheduler, for each kind of model. Start reading in `driver`.

controls         control tensors of the sequence batcher
decoupled        the driver of a decoupled model
driver           the driver: asks a scheduler, and sends batches to workers
first_response   times the first response to each request
outage           detects that a version has had no worker for too long
reshape          `reshape`: converts shapes between client and model
runner           the interface of a runner, and of the handle of a submitted request
sequence_driver  the drivers of models with sequences, and of iterative models
shared_lease     one output slot shared by several responses, and several slots of one response
statistics       updates the statistics of a version
"""
