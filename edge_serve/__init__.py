"""edge-serve: Triton Inference Server's job on a device you can flash.

Read downwards by layer (docs/rooms.md): `errors clock tensors messages` are the words, `config protocol metrics`
read and write them, `scheduling` decides, `backends` compute inside `workers`, `models` live, `service` means every
operation once, `transport` speaks it, `server` and `cli` put it together.
"""

__version__ = "0.1.0"
