"""Reasons, decisions and predictions in words. The only prose about decisions.

Read in this order: ``reasons``, ``predictions``, ``borrowing``, ``sleeping_nodes``, ``windows``, ``starts``.
"""
