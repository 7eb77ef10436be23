"""The `replog` command: reads what a broker keeps on disk, and never writes there."""
