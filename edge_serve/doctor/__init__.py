"""`edge-serve doctor`: examines this machine and the installed service, and says what is missing and how to get it.

`command` runs the examinations, each with a time limit: `machine` (Python, memory, limits, disks), `gpu` and
`libraries` (driver, CUDA, and the libraries that the installed onnxruntime-gpu needs, which `elf` reads), `service`
(units, settings, models, the running server), `ports` (which process listens where). Each of them yields findings
(`finding`) and changes nothing. `facts` has what releases are matched by. Start reading in `command`.
"""
