"""Looking after checkpoints from a shell: what one holds, whether it is whole, and a copy of it.

Nothing here changes a checkpoint. A copy is taken while no driver holds the lease.
"""
