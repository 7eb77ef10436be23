"""The data path of share groups (KIP-932), at the leader of a share partition."""
