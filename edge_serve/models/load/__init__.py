"""One load: from a model directory to a version that serves. Start reading in `loading`.

batch          one load of several models: from names to plans, and in the order of their dependencies
dependencies   which models need which
device_memory  decides whether a model fits into the memory of its GPUs
engines        builds the engines of models, where the configuration asks for it
golden         the golden test as a stage of a load
load_history   which models are loading, failed, or left out
load_plan      the plan of a load
loading        plans, opens, and warms up a version
memory         decides whether a model fits into the machine's memory
warmup         `model_warmup`
"""
