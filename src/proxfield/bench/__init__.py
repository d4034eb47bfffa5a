"""The paper's benchmark: instances, timed runs that resume, tables, and a report.

`suites` finds or makes the instances, `runner` runs them into a `store`, `table` and
`sensitivity` average what is stored, `report` shows it. ``proxfield bench`` puts them together.
"""
