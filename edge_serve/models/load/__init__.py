"""One load: from a model directory to a version that serves. Start reading in `loading`.

admission        decides whether a model fits into memory
batch            one load of several models, in the order of their dependencies
dependencies     which models need which
golden           the golden test as a stage of a load
instance_update  a change of `instance_group` alone
load_history     which models are loading, failed, or left out
loading          plans, opens, and warms up a version
memory           the machine's memory, and the memory that each model took when it was loaded
planning         reads configurations: from names to plans
warmup           `model_warmup`
"""
