"""`edge-serve doctor`: examines this machine and the installed service, and says what is missing and how to get it.

`command` runs the examinations, each with a time limit: `machine` (Python, memory, limits, disks), `gpu` and
`libraries` (driver, CUDA, and the libraries that the installed onnxruntime-gpu needs, which `elf` reads), `jetson`
(JetPack, slots, power, groups), `service` (units, settings, models, the running server), `ports` (which process listens
where). Each of them yields findings (`finding`) and changes nothing. `facts` has the facts by which releases are
matched. Start reading in `command`.

    command    runs the examinations, each with a time limit, and prints what they found
    elf        the shared libraries that an ELF file needs (DT_NEEDED, elf(5)), without loading it or its libraries
    facts      the facts of a device by which releases are matched to it
    finding    one line of the doctor's report, and the report as text or JSON
    gpu        the NVIDIA GPU: which machine this is (WSL, Jetson, PC), its driver, and the device files
    jetson     a Jetson: JetPack's packages, slots of the boot loader, power mode, groups
    libraries  the libraries of CUDA: which ones are there, and which the installed onnxruntime-gpu is linked with
    machine    the machine
    packs      the backend packs: which ones are there, and what is wrong with them
    ports      who listens on the ports of the server
    service    the installed service and the running server
"""
