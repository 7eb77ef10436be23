"""The data path of share groups (KIP-932): what a share partition's leader does."""
