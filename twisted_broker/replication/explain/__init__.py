"""Why a partition is as it is, found when somebody asks."""
