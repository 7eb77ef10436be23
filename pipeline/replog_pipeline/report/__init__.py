"""The report's pages: tables to CSV files and to one HTML page with plots that opens anywhere,
offline. Knows no Spark.
"""
