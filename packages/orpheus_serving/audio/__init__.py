"""What happens to samples after the codec: edges, formats."""
