"""Traces, and the one formula for their log-probability and for the noise given a trace."""
