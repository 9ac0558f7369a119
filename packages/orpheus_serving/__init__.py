"""Streamed speech from Orpheus-style speech language models.

Text goes in one end and PCM comes out of the other; `synthesizer.py` is the whole path on one page.
"""

__version__ = "0.1.0"
