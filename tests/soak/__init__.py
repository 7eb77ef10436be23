"""Hours of a cluster under load, restarts and kills: what grows, and what is lost."""
