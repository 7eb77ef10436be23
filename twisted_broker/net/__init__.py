"""Connections: frames, order of answers, back-pressure, listeners, and the client side between
brokers.
"""
