"""Replicas of one model that share what they learn."""
