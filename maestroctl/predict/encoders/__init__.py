"""The encoders behind `embedding.WindowEmbedder`, one per file."""
