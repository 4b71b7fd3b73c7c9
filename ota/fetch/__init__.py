"""Downloads blobs and metadata. No byte from a mirror or a USB stick is trusted until its hash or TUF verifies it.

Start reading in `blobs.BlobFetcher.fetch`. Only `http` and `put` import urllib3.

    http        a repository on a web server
    directory   a repository in a directory, such as a USB stick
    staged      the agent's verified metadata as a repository, for the root side of system updates
    mirrors     tries several sources in order, and demotes those that failed
    blobs       fetches the files of a release: resumed, verified, and stored
    chunks      the pieces of a file, and where the device already has them
    limits      pure decisions: rate, hours, retries
    limiter     keeps a download within its limits
    disk_space  checks that the disk has space for a download
    failures    the error of a failed request, and the cause in words
    time_limit  runs a blocking call with a timeout
    put         uploads a report with HTTP PUT
"""
