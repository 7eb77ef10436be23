"""Who asks, and what they may: principals and the authoriser's gate."""
