"""The jobs of `deploy/quickstart`: known text through a cluster or the engine, each line judged."""
