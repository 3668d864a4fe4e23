"""The inequalities of the five papers, each as what can be tried; experiments/theorems.py tries
them.
"""
