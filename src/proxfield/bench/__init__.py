"""The paper's benchmark: instances, timed runs that resume, tables, and a report.

`suites` finds or makes the instances, `runner` runs them into a `store`. Each experiment has a
module with its tasks and tables: `paper`, `people`, `inpainting`, `segmentation`. `charts` draws
what is stored, `report` shows it. ``proxfield bench`` puts them together.
"""
