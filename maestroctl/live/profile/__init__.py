r"""Measuring what a model costs on this machine, and finding what was measured.

Theory of operation of a measurement::

    cold start -> rounds of decoding, prefill, held-out groups -> sleep, wake -> copy -> stop
        |              \____________/           |                      |           |
    memory, time     fit of the iteration   its error             bytes kept     gamma

Every step drives the real engine through the same adapter as the node daemon and adds to one
`Measurements` object. Rounds are repeated until the spread is small or a limit is reached. A step
that is interrupted leaves what came before, and `record` fills the rest from the model's geometry.

`plan` says how much is done, `load` sends requests and takes the times, `samples` turns times into
samples of the fit, `steps` are the steps, `measure` runs them in order, `record` makes the file's
values, `lookup` is what the node daemon asks.

See also: `estimate.iteration_fit` (the fit), `config.profile_store` (where files are found).
"""
