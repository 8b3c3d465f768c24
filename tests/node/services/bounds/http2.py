"""Just enough HTTP/2 to send half a gRPC request, which no client library would.

Owns frames, the windows that the server grants and answers to its pings; must not know what a call
says. It breaks no rule of the protocol: a server that closes such a connection does so for its time
and not for a fault.
"""

import socket
import struct
from typing import Final

from tests.patience import PATIENCE_S

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GO_AWAY, _WINDOW = 0, 1, 3, 4, 6, 7, 8
_ACK, _END_HEADERS = 1, 4
_INITIAL_WINDOW: Final = 65_535
_FRAME_SIZE_BYTES_MAX: Final = 16_384
_HEAD: Final = struct.Struct(">BHBBI")


class HalfSender:
    """One connection with calls whose requests never end."""

    def __init__(self, address: str, *, source: str = "127.0.0.1") -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection(
            (host, int(port)), timeout=PATIENCE_S, source_address=(source, 0)
        )
        self._socket.settimeout(0.02)
        self._buffer = b""
        self._stream_window = _INITIAL_WINDOW
        self.windows: dict[int, int] = {0: _INITIAL_WINDOW}
        """What may be sent, by stream; 0 is the connection."""
        self.ended: dict[int, bytes] = {}
        """Streams that the server ended, with the headers that it said so in, not decoded."""
        self.is_closed = False

    def greet(self, *, takes_nothing: bool = False) -> None:
        """Begin to speak HTTP/2; without a window not one byte of an answer may come."""
        settings = struct.pack(">HI", 4, 0) if takes_nothing else b""
        self._send_raw(_PREFACE + _frame(_SETTINGS, 0, 0, settings))

    def call(self, stream: int, path: str, *, size_bytes: int, is_compressed: bool = False) -> None:
        """Begin a call with a request of so many bytes, of which none is sent yet."""
        fields = {
            ":method": "POST",
            ":scheme": "http",
            ":path": path,
            ":authority": "here",
            "content-type": "application/grpc",
            "te": "trailers",
        }
        if is_compressed:
            fields["grpc-encoding"] = "gzip"
        block = b"".join(_literal(name.encode(), value.encode()) for name, value in fields.items())
        self.windows[stream] = self._stream_window
        self._send_raw(_frame(_HEADERS, _END_HEADERS, stream, block))
        self.send(stream, struct.pack(">BI", is_compressed, size_bytes))

    def send(self, stream: int, data: bytes) -> int:
        """Send of a request as much as the server takes at once; return how much."""
        sent = 0
        while sent < len(data):
            room = min(self.windows[0], self.windows[stream], _FRAME_SIZE_BYTES_MAX)
            if room <= 0:
                break
            part = data[sent : sent + room]
            self._send_raw(_frame(_DATA, 0, stream, part))
            sent += len(part)
            self.windows[0] -= len(part)
            self.windows[stream] -= len(part)
        return sent

    def look(self) -> None:
        """Take in what the server has said, and answer it as one has to."""
        try:
            while data := self._socket.recv(65_536):
                self._buffer += data
                self._take_frames()
            self.is_closed = True
        except TimeoutError:
            pass
        except OSError:
            self.is_closed = True

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def _take_frames(self) -> None:
        while len(self._buffer) >= _HEAD.size:
            high, low, kind, flags, stream = _HEAD.unpack_from(self._buffer)
            end = _HEAD.size + (high << 16 | low)
            if len(self._buffer) < end:
                return
            payload, self._buffer = self._buffer[_HEAD.size : end], self._buffer[end:]
            self._take(kind, flags, stream, payload)

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == _SETTINGS and not flags & _ACK:
            for at in range(0, len(payload), 6):
                name, value = struct.unpack_from(">HI", payload, at)
                if name == 4:
                    self._change_window(value)
            self._send_raw(_frame(_SETTINGS, _ACK, 0, b""))
        elif kind == _PING and not flags & _ACK:
            self._send_raw(_frame(_PING, _ACK, 0, payload))
        elif kind == _WINDOW:
            self.windows[stream] = self.windows.get(stream, 0) + struct.unpack(">I", payload)[0]
        elif kind == _HEADERS and flags & 1:
            self.ended[stream] = payload
        elif kind == _RESET:
            self.ended.setdefault(stream, b"")
        elif kind == _GO_AWAY:
            self.is_closed = True

    def _change_window(self, value: int) -> None:
        for stream in self.windows:
            if stream:
                self.windows[stream] += value - self._stream_window
        self._stream_window = value

    def _send_raw(self, data: bytes) -> None:
        try:
            self._socket.settimeout(PATIENCE_S)
            self._socket.sendall(data)
        except OSError:
            self.is_closed = True
        finally:
            self._socket.settimeout(0.02)


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    size_bytes = len(payload)
    return _HEAD.pack(size_bytes >> 16, size_bytes & 0xFFFF, kind, flags, stream) + payload


def _literal(name: bytes, value: bytes) -> bytes:
    """A header field without compression."""
    return b"\0" + bytes((len(name),)) + name + bytes((len(value),)) + value
