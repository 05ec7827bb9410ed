"""Measuring methods: metrics, runs, costs and records."""
