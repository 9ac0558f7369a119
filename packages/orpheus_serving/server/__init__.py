"""The self-hosted server: the pipeline of `synthesizer.py` behind the protocols that clients already speak.

HTTP, WebSocket (app.py: one port) -+
                                    +-> service.py: admission, metrics, logs -> synthesizer.py
gRPC (a port beside it) ------------+
"""
