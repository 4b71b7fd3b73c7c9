"""Running a version: the driver around a scheduler, for each kind of model. Start reading in `driver`.

controls         what a sequence batcher adds to requests
decoupled        the driver of a decoupled model
driver           the shell around a scheduler
iterative        the drivers of iterative models
outage           the time in which no instance of a version has a worker
reshape          `reshape`
sequence_driver  the driver of models with sequences
shared_lease     one output slot that holds the answers of several requests
statistics       keeps the statistics of one model version
ticket           what whoever submits a request holds of it, and what it is told by
"""
