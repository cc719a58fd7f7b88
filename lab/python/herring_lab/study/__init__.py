"""Repeats the measurement studies of the papers on emulated hosts (``herring study``).

``experiments`` defines what is measured, ``bench`` measures one point in a lab, and
``herring_lab.report`` writes tables, JSON and plots. Plots need matplotlib.
"""
