"""One load: from a model directory to a version that serves. Start reading in `loading`.

batch            one load of several models, in the order of their dependencies
dependencies     which models need which
golden           the golden test as a stage of a load
instance_update  a change of `instance_group` alone
load_history     which models are loading, failed, or left out
loading          plans, opens, and warms up a version
memory           decides whether a model fits into the machine's memory
planning         reads configurations: from names to plans
warmup           `model_warmup`
"""
