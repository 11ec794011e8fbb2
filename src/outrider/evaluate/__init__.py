"""Measuring: prompts in, side-by-side numbers out."""
