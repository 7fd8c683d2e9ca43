"""Every request, response and event shape, once. Imports nothing of ours."""
