"""Other tools on the same models: marginals, log Z, labellings and images, against exact answers.

`base` says what a peer is, `registry` lists them, `tools` asks each. `models` makes fields whose
exact answers `elimination` computes, `scenes` makes images; `measure` runs every peer in a process
of its own, `tables` shows what came out. ``proxfield bench peers`` puts them together.
"""
