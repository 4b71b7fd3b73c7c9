"""The Debian package: one for each release of Debian and Ubuntu, because a virtual environment belongs to one Python.

The maintainer scripts are the files preinst, postinst, prerm and postrm beside these. Those of packs begin with
`pack-`. The build needs dpkg-deb only, and no root: root owns the files in the package, whichever user builds it.

    __main__  the command behind `make deb`
    pack      the packages of backend packs
    package   writes the tree, the control files, and the .deb
    releases  the table of releases
    texts     changelog and copyright file
"""
