"""What a broker tells about itself outside of the protocol."""
