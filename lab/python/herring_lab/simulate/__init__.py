"""Runs jobs in virtual time, and so predicts all-reduces on hosts and links that need not exist."""
