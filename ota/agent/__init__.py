"""The agent: updates each bundle to the release that the rollout of its fleet names. Starts no thread.

May import layers 0 to 3. Start reading in `update`.

    update        one update, step by step: refresh, fetch, install, build, test, switch, watch
    components    the interfaces that an update works with
    compose       creates the real components from the settings
    desired       reads the signed documents: which release and variant this device should run
    rollout       the rollout document of this run, refreshed when it is older than a few minutes
    checks        refuses taken model names and unapproved code; makes the repository of a trial
    switch        writes the journal, changes the links, and reloads models; and the way back
    recorder      writes the progress of an update to journal, status file, history, and bad list
    recovery      repairs journal and links after a crash
    boot          the step before edge-serve starts; needs no network and never fails the boot
    probation     watches a new release by the status document of edge-serve
    plan_builder  TensorRT plans that are built on this device, cached and sealed
    status_file   the status file that edge-serve reads
    system/       updates of the device's system
    device/       identity and facts of this device
    operator/     the operator's commands on a device
    reports/      the reports that this device sends
"""
