"""What the jobs make of their rows and headers: pure functions, of DataFrames (`df -> df`) or of
numpy tables of batch headers.

Nothing here asks a broker or knows an option's name; files are read in tasks only (`batch_sizes`);
`pyspark` is imported when a function is called.
"""
