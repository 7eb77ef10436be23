"""Share groups of KIP-932: what they are, and what is decided about them."""
