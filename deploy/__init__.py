"""Packages and generated files: the Debian package, the program in it, manual pages, completion, tables of the docs.

`make deb`, `make lock`, `make docs`, `make proto` and the image run these modules. Neither a package nor a wheel
contains them. They import `edge_serve` and `ota` only where they print tables of these. Start with `program`.

    program         the virtual environment of a package: what `make install` writes
    debian/         the Debian package
    build_py        the step of setuptools that collects the modules of a wheel
    version         the version of a build, from git
    lock            writes the lock files
    requirements    reads and writes a lock file
    wheels          reads the installed wheels
    bill            the software bill of materials
    pages           the user pages of a package
    settings        docs/settings.md
    image_settings  the table of keys in docs/image_settings.md
    metrics         docs/metrics.md
    man_page        edge-serve(1)
    completion      completion for bash
    ota/            the same pages for edge-ota
    protoc          descriptor sets and stubs of the .proto files
"""
