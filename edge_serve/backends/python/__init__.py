"""The backend `python`: runs a `model.py` written against `triton_python_backend_utils`. Start reading in `backend`.

api/      The classes that a model's code sees as `triton_python_backend_utils`
backend   the backend `python`
events    the event loop of an instance whose model has `async def` methods
instance  one instance of a Python model
model     the file of a Python model
"""
