"""The download of blobs and metadata. Nothing that comes from a mirror or a stick is trusted; hashes and TUF decide.

- `http`, `directory`: a repository on a web server, and one on a stick. Both are a `Source`. `failures` has the words.
- `mirrors`: several sources, tried in order, and which of them failed lately.
- `blobs`: files of a release, resumed, checked, and put into the store. `chunks`: what the device has of them already.
- `limits`: pure decisions: rate, hours, retries. `pace` acts on them. `space`: whether the disk has room.

Start with `blobs.Blobs.fetch`. `http` imports urllib3; nothing else here does.
"""
