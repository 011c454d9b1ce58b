"""Compiles kernels with DXC, DirectX's HLSL compiler: python3 dxc.py libdxcompiler.so FOLDER [--all]

Compiles the .hlsl files in FOLDER and below with wgpu's options, for shader model 6.0, or 6.2 with 16-bit numbers. If files differ
only in numbers, like kernels for several shapes, it compiles one of them, or all with --all.
"""

import ctypes
import os
import pathlib
import re
import sys
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor

CLSID_COMPILER = uuid.UUID("73e22d93-e6ce-47f3-b5bf-f0664f39c1b0")
IID_COMPILER3 = uuid.UUID("228b4687-5a6a-4730-900c-9702b2203f54")
IID_RESULT = uuid.UUID("58346cda-dde7-4497-9461-6f87af5e0659")
IID_BLOB = uuid.UUID("8ba5fb08-5195-40e2-ac58-0d989c3a0102")
OUT_OBJECT, OUT_ERRORS = 1, 2
UTF8 = 65001


class Buffer(ctypes.Structure):
    _fields_ = [("text", ctypes.c_char_p), ("size", ctypes.c_size_t), ("encoding", ctypes.c_uint32)]


def guid(of):
    return ctypes.create_string_buffer(of.bytes_le, 16)


# Methods of IUnknown outside Windows: its own three, and the two destructors of a C++ class.
RELEASE, OWN = 2, 5


def method(this, number, *types, returns=ctypes.c_int32):
    """A method of a COM object, by its index in the table."""
    table = ctypes.cast(this, ctypes.POINTER(ctypes.POINTER(ctypes.c_void_p))).contents
    function = ctypes.CFUNCTYPE(returns, ctypes.c_void_p, *types)(table[number])
    return lambda *arguments: function(this, *arguments)


def expect(what, status):
    if status < 0:
        raise RuntimeError(f"{what}: error {status & 0xFFFFFFFF:#x}")


class Dxc:
    def __init__(self, path):
        self.library = ctypes.CDLL(path)
        self.compiler = ctypes.c_void_p()
        make = self.library.DxcCreateInstance
        expect("no compiler", make(guid(CLSID_COMPILER), guid(IID_COMPILER3), ctypes.byref(self.compiler)))

    def compile(self, text):
        """The compiled shader, or None, and the compiler's messages."""
        halves = "float16_t" in text or "half" in text
        words = ["-E", "main", "-T", "cs_6_2" if halves else "cs_6_0", "-HV", "2018", "-no-warnings", "-Ges"]
        words += ["-enable-16bit-types"] if halves else []
        arguments = (ctypes.c_wchar_p * len(words))(*words)
        encoded = text.encode()
        buffer = Buffer(encoded, len(encoded), UTF8)
        result = ctypes.c_void_p()
        # Compile(source, arguments, count, includes, riid, result).
        run = method(self.compiler, OWN, *[ctypes.c_void_p] * 2, ctypes.c_uint32, *[ctypes.c_void_p] * 3)
        done = run(ctypes.byref(buffer), arguments, len(words), None, guid(IID_RESULT), ctypes.byref(result))
        expect("the compiler does not run", done)
        # IDxcOperationResult: GetStatus, GetResult, GetErrorBuffer; then IDxcResult: HasOutput, GetOutput.
        status = ctypes.c_int32()
        expect("no status", method(result, OWN, ctypes.c_void_p)(ctypes.byref(status)))
        shader = self.output(result, OUT_OBJECT) if status.value >= 0 else None
        errors = self.output(result, OUT_ERRORS) or b""
        method(result, RELEASE)()
        return shader, errors.rstrip(b"\0").decode(errors="replace")

    @staticmethod
    def output(result, kind):
        blob = ctypes.c_void_p()
        get = method(result, OWN + 4, ctypes.c_int32, *[ctypes.c_void_p] * 3)
        if get(kind, guid(IID_BLOB), ctypes.byref(blob), None) < 0 or not blob.value:
            return None
        pointer = method(blob, OWN, returns=ctypes.c_void_p)()
        size = method(blob, OWN + 1, returns=ctypes.c_size_t)()
        content = ctypes.string_at(pointer, size) if size else b""
        method(blob, RELEASE)()
        return content


def shapeless(text):
    return re.sub(r"\d+", "0", text)


def main(library, folder, everything):
    local = threading.local()

    def compile(file):
        # One compiler per thread.
        if not hasattr(local, "dxc"):
            local.dxc = Dxc(library)
        shader, errors = local.dxc.compile(file.read_text())
        if shader is not None and shader.startswith(b"DXBC"):
            return None
        lines = [line for line in errors.splitlines() if "error" in line]
        return f"{file.relative_to(folder)}: {lines[0] if lines else 'no shader'}"

    # The compiler must refuse invalid code; otherwise it would find nothing.
    if Dxc(library).compile("[numthreads(1, 1, 1)] void main() { unknown(); }")[0] is not None:
        raise RuntimeError("DXC lets an unknown function pass")
    files = sorted(pathlib.Path(folder).rglob("*.hlsl"))
    if not files:
        raise RuntimeError(f"{folder} has no kernels")
    chosen = files if everything else list({shapeless(file.read_text()): file for file in files}.values())
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        failed = [fault for fault in threads.map(compile, chosen) if fault]
    print(*failed, sep="\n", end="\n" if failed else "")
    print(f"DXC: {len(chosen) - len(failed)} of {len(chosen)} kernels compile; {len(files)} with those for other shapes")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], "--all" in sys.argv[3:]))
