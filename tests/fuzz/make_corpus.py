"""Writes the inputs with which fuzzing begins: each way of using the target once, by hand.

    python tests/fuzz/make_corpus.py

What fuzzing has found later lies beside them under names that libFuzzer gave.
"""

from __future__ import annotations

import struct
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "corpus_frames"
LINK, DECODE, REPORT, ENGINE = range(4)
RAW, FRAME, _, OPEN, CLOSE, FORGET, ABORT, PROGRESS = range(8)
DATA, TOKEN, CREDIT, REPORTS, BYE, STREAMS = range(6)
FIRST, WITH_CREDIT, TAKEN, FLIP, SHORT = 8, 16, 32, 64, 128


def header(kind: int = 1, flags: int = 0, length: int = 0, communicator: int = 0, sequence: int = 0) -> bytes:
    """As csrc/transports/tcp/wire.h has it."""
    return struct.pack(
        "<IBBHIIQQ16sII",
        0x31434C43,
        kind,
        flags,
        0,
        communicator,
        length,
        sequence,
        0,
        bytes(8) + b"\1" + bytes(7),
        0,
        0,
    )


def frame(kind: int, bits: int = 0, key: int = 0, length: int = 1, credit: int = 0) -> bytes:
    """Of a link's script: FRAME, the signature, the bits, the key, then what the bits ask for."""
    out = bytes([FRAME, 1, kind | bits, key])
    out += struct.pack(">I", credit) if kind <= CREDIT and bits & WITH_CREDIT else b""
    out += b"\1" if bits & TAKEN else b""
    out += struct.pack(">I", length - 1) if kind in (DATA, REPORTS) else b""
    out += b"\4\7" if bits & FLIP else b""
    return out + (b"\x10" if bits & SHORT else b"") + b"\0"


def opened(key: int, bits: int, size: int) -> bytes:
    return bytes([OPEN, key, bits]) + struct.pack(">I", size)


LOOK = bytes([PROGRESS])
SEND, RECEIVE, REDUCE, FLOATS, DOUBLES = 1, 2, 4, 2 << 4, 3 << 4
INPUTS = {
    "link-copy": opened(0, SEND | RECEIVE, 3000) + LOOK + frame(DATA, FIRST, 0, 3000) + LOOK + bytes([CLOSE]) + LOOK,
    "link-reduce": opened(8, RECEIVE | REDUCE | FLOATS, 4096)
    + frame(DATA, FIRST, 8, 4095)
    + LOOK
    + frame(DATA, 0, 8, 1),
    "link-reduce-long": opened(8, RECEIVE | REDUCE | DOUBLES, 39992) + frame(DATA, FIRST, 8, 39992) + LOOK,
    "link-early": frame(DATA, FIRST, 16, 500) + LOOK + frame(TOKEN, 0, 16) + opened(16, RECEIVE, 500) + LOOK,
    "link-token": opened(0, RECEIVE | SEND, 0) + frame(TOKEN, FIRST) + LOOK + bytes([CLOSE]) + frame(TOKEN) + LOOK,
    "link-message": opened(2, SEND, 30000) + LOOK + frame(CREDIT, FIRST | WITH_CREDIT, 2, 1, 2000) + LOOK,
    "link-mismatch": opened(0, RECEIVE, 100) + b"\1\0" + frame(DATA, FIRST, 0, 100)[2:] + LOOK,
    "link-forget": frame(DATA, FIRST, 1, 900) + LOOK + bytes([FORGET, 1]) + frame(DATA, 0, 1, 90) + LOOK,
    "link-report": frame(REPORTS, 0, 0, 20000) + LOOK + frame(REPORTS, SHORT, 0, 300) + bytes([ABORT, 9]) + LOOK,
    "link-bye": opened(0, SEND, 5000) + LOOK + frame(BYE) + LOOK + frame(STREAMS, TAKEN) + LOOK,
    "link-flip": frame(CREDIT, FIRST | FLIP) + LOOK,
    "link-cut": opened(0, RECEIVE, 5000) + frame(DATA, FIRST | SHORT, 0, 5000) + LOOK,
    "link-raw": bytes([RAW, 55]) + header(1, 1, 40) + bytes([RAW, 39]) + bytes(40) + LOOK,
    "decode-data": header(1, 1, 4096, 3, 77),
    "decode-report": header(4, 0, 12),
    "decode-bad": header(9, 2, 5),
    "report-mismatch": b"2 0 1 0 1 0 7\n4\ntext\n4\nname\n1 0 2 5 6 1 5 2 3 4 ",
    "report-left": b"0 3 1 -1 -1 0 -1\n0\n\n0\n\n0 0 ",
    "report-shapes": b"2 0 1 0 1 0 7\n0\n\n0\n\n0 0 -1 5 -1 7 9223372036854775807 3 ",
    "report-long-text": b"3 0 1 0 1 0 7\n99999999999\nshort",
    "engine-data": b"\2" + frame(DATA, FIRST, 0, 512)[2:3] + struct.pack(">I", 511) + b"\0",
    "engine-report": b"\1\2\0\4\3\4\2\0\4\1\5\1\5",
    "engine-mismatch": b"\1\2\0\4\4\3\1\1\7\xff\xff\xff\xff\xff\xff\xff",
    "engine-raw": b"\0\x37" + header(1, 1, 400) + b"\0\x20" + bytes(33),
}
MODES = {"link": LINK, "decode": DECODE, "report": REPORT, "engine": ENGINE}


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, script in INPUTS.items():
        (FOLDER / name).write_bytes(bytes([MODES[name.split("-")[0]]]) + script)


if __name__ == "__main__":
    main()
