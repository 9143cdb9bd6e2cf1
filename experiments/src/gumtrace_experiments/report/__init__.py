"""Runs as they are reported: records, tables and figures."""
