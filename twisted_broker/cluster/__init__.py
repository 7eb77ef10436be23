"""The metadata log, the picture it builds, the controller that writes it and a broker's
membership.
"""
