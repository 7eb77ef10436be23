"""The metadata log, the image it builds, the controller that writes it and a broker's
membership.
"""
