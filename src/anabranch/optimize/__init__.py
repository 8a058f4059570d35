"""Chooses the plan of a query: by output rate, within limits on CPU and memory."""

from __future__ import annotations

from anabranch.optimize.choice import Choice, choose
from anabranch.optimize.hints import Hints, Objective
from anabranch.optimize.proposals import Budget, Candidate, Infeasible, MeshOffer, Proposal

__all__ = ["Budget", "Candidate", "Choice", "Hints", "Infeasible", "MeshOffer", "Objective", "Proposal", "choose"]
