"""The gRPC side of the server: NVIDIA Riva's speech synthesis service, health and reflection."""
