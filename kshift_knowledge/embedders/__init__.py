"""Texts to vectors behind one protocol, by OpenAI's API or by a local model."""
