"""Share groups of KIP-932: their state, and the decisions on their requests."""
