"""Why a partition is in its state: computed on request."""
