"""One module per family of APIs, one class per message for all its versions.

Families are independent: import only the one you need.
"""
