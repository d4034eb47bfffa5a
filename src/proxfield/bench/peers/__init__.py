"""Other tools on the same models: marginals, log Z, labellings and images, against exact answers.

`base` says what a peer is, `registry` lists them, `tools` asks each. `problems` makes images, and
fields whose exact answers `graph` computes; `measure` runs every peer in a process of its own,
`tables` shows what came out. ``proxfield bench peers`` puts them together.
"""
