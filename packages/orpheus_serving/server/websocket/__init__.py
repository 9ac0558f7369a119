"""Text in, speech out over one WebSocket, in the frames of several clients.

session.py        what all of them share: reader, writer, text that is being written
orpheus_truss.py  /v1/websocket                     raw text frames in, raw PCM frames out, one utterance a socket
together.py       /v1/audio/speech/websocket        one text buffer a socket, JSON frames
cartesia.py       /tts/websocket                    many contexts a socket, JSON frames: the one to build new clients on
elevenlabs.py     /v1/text-to-speech/{voice}/multi-stream-input

docs/websocket.md describes the frames.
"""
