"""One load: from a model directory to a version that serves. Start reading in `loading`.

admission        whether a model may be loaded
batch            one load of several models
dependencies     which models need which
golden           the golden test as a stage of a load
instance_update  a change of `instance_group` alone
load_history     what loading tells those who watch over the service, and what they tell it
loading          from a model directory to a version that serves
memory           what memory there is, and what each model took of it when it was loaded
planning         from names to plans
warmup           `model_warmup`
"""
