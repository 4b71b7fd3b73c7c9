"""The bill of materials of an image: Debian's packages with their licences, and the wheels of edge-serve."""

from __future__ import annotations

import json

from deploy.bill import bill_of_materials as bill_of_package
from deploy.wheels import Wheel
from image.bill import bill_of_materials, licence_names

LICENCES = """\
==== libc6 ====
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/

License: LGPL-2.1+
 text
License: GPL-2+

==== dash ====
free text
"""


def wheel(name: str, requires: tuple[str, ...] = ()) -> Wheel:
    return Wheel(name, "1.0", "MIT", {}, ("ab" * 32,), {}, requires, (name,))


def test_the_bill_has_packages_and_wheels() -> None:
    program = bill_of_package([wheel("edge-serve", ("numpy",)), wheel("numpy")], "0.1.0+git9.abc", 1700000000)
    packages = [("libc6", "2:2.41-12", "amd64"), ("dash", "0.5", "amd64")]
    text = bill_of_materials("edge-serve-image-base", "9", packages, LICENCES, program)
    document = json.loads(text)
    server, libc, dash = document["components"]

    assert document["metadata"]["component"]["version"] == "9"
    assert (server["name"], server["version"]) == ("edge-serve", "0.1.0+git9.abc")
    assert [one["name"] for one in server["components"]] == ["numpy"]
    assert libc["purl"] == "pkg:deb/debian/libc6@2%3A2.41-12?arch=amd64&distro=trixie"
    assert libc["licenses"] == [{"license": {"name": "GPL-2+"}}, {"license": {"name": "LGPL-2.1+"}}]
    assert "licenses" not in dash
    references = {server["bom-ref"], libc["bom-ref"], dash["bom-ref"], server["components"][0]["bom-ref"]}
    assert len(references) == 4
    assert {one["ref"] for one in document["dependencies"]} <= references
    assert text == bill_of_materials("edge-serve-image-base", "9", packages, LICENCES, program)


def test_licences_of_a_package_are_those_below_its_name() -> None:
    assert licence_names(LICENCES) == {"libc6": ["GPL-2+", "LGPL-2.1+"], "dash": []}
