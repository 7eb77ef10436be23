"""What the jobs make of their rows and headers: pure functions, of DataFrames (`df -> df`) or of numpy tables of batch headers.

Nothing here opens a file, asks a broker or knows an option's name; what is taken from `pyspark` is taken when a function is called.
"""
