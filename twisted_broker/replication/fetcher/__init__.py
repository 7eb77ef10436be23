"""How a follower gets its leader's records: rounds of fetching, what an answer means,
truncation.
"""
