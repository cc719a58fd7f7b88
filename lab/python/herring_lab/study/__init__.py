"""``herring study``: the measurement studies of the papers, repeated on emulated hosts.

``experiments`` says what is measured, ``bench`` measures one point in a lab, ``report`` writes
tables, JSON and plots. Plots need matplotlib.
"""
