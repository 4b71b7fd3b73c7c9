"""A model as a living thing.

`repository` finds models on disk, `version_policy` picks versions, `loading` turns one version into a `Served`,
`driver` (the one file here that owns the clock and the wake-ups) runs it, `decoupled` where a request has many answers,
`ensemble*` where it is a graph of models. `registry` decides what is loaded, swapped and unloaded;
`regrouping` changes the instances of what serves.
May import the layers below: words, config, protocol, metrics, scheduling, workers. Start in `registry`.

    control/     Control of what is loaded
    ensemble/    Ensembles
    extras/      Extras that stand around a runner
    load/        One load
    repository/  The model repositories on disk
    run/         Running a version
    versions/    Versions
"""
