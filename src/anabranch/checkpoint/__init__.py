"""Checkpoint commands for the shell: inspect the contents, verify the files, copy.

Invariant: no command changes a checkpoint. A copy is taken while no driver holds the lease.
"""
