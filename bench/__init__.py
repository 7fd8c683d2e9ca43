"""Onward against raw limits and peers: ratios of medians, taken in one run on one machine."""
