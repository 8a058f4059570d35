"""Messages about meshes: counts of routes, operator matrices and profiles of sampled rows, and meshes with their costs.

The engine, the mesh search and the adaptation package exchange these values without importing each other.
"""
