"""The backend `python`: runs a `model.py` written against `triton_python_backend_utils`. Start reading in `backend`.

api/      the classes that a model's code sees
backend   opens a model and its instances
events    the event loop of an instance with `async def` methods
instance  one instance: calls the model's methods and checks what they return
model     imports the file of a model
"""
