"""Onward: hand off work and move on."""

__version__ = "0.1.0"
