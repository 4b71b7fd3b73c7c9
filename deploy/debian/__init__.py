"""The Debian package: one for each release of Debian and Ubuntu, because a virtual environment belongs to one Python.

`releases` has the table, `package` writes the tree and the control files, `__main__` is `make deb`; the maintainer
scripts are the files preinst, postinst, prerm and postrm beside them. The build needs dpkg-deb only, and no root: root
owns the files in the package, whichever user builds it.
"""
