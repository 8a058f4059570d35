"""Messages about meshes: counts of routes, operator matrices and profiles of sampled rows, and meshes with their costs.

The engine, the mesh search and the room that decides exchange these values, and need not import each other.
"""
