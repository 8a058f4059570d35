"""Messages about meshes: counts of routes, operator matrices and profiles of sampled rows, and meshes with their costs.

The engine, the mesh search and the rooms that decide exchange these values; none of them imports another for it.
"""
