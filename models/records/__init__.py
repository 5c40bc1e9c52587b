"""Tables of the capacity database. Workflows never import these.

Memory is whole MB and CPU thousandths of a core here, so that sums and constraints are exact.
"""
