"""All packs in one server: models of each beside the others, of Python, and of ensembles, and versions under load.

repository  writes the models, and says what each answers
client      a client of Triton's own library, also with tensors in shared memory
"""
