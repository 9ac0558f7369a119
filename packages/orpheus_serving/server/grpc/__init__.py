"""The gRPC side of the server: NVIDIA Riva's speech synthesis service, health and reflection, on a port of their own.

riva_*.proto --scripts/build_grpc.py--> riva_*_pb2.py, riva_tts_pb2_grpc.py
server.py    the port: limits, API keys, health, reflection, the end
riva.py      requests -> service.py -> answers, and errors as gRPC's statuses
audio.py     samples -> bytes of the encoding and rate that were asked for
"""

from .server import GrpcServer, start_grpc

__all__ = ["GrpcServer", "start_grpc"]
