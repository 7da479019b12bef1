"""oneDNN's matmul for tools/bench/peers: the products of `gptc bench matmul --json` by a libdnnl of version 2 or 3,
through its C interface, which needs no header. Weights are packed once, in the layout that oneDNN asks for, or left
as they are.

    onednn_matmul.py LIBDNNL SECONDS < JSON

Reads {"dtype": "f32" or "bf16", "products": [{"m":, "n":, "k":, "form":}]}, where form is AB (B a weight), AB' (B a
transposed weight) or A'B (a product of activations, which nothing can pack), spends so many seconds on each, and
prints {"version":, "packed": [median ms..], "plain": [..]}.
"""

import ctypes
import json
import mmap
import statistics
import sys
import time

F32, BF16 = 3, 2  # dnnl_data_type_t
ANY = 1  # dnnl_format_tag_any
WEIGHTS_MD = 131  # dnnl_query_weights_md
SRC, DST, WEIGHTS, FROM, TO = 1, 17, 33, 1, 17  # arguments of primitives
CPU, IN_ORDER = 1, 1
BYTE = 0x3C  # every byte of every operand: 0.0115 in fp32 and in bf16


class Argument(ctypes.Structure):
    _fields_ = [("arg", ctypes.c_int), ("memory", ctypes.c_void_p)]


class OneDnn:
    def __init__(self, path):
        self.lib = ctypes.CDLL(path)
        version = ctypes.cast(self.function("dnnl_version", ctypes.c_void_p)(), ctypes.POINTER(ctypes.c_int))
        self.version, self.major = f"{version[0]}.{version[1]}.{version[2]}", version[0]
        if self.major not in (2, 3):
            raise SystemExit(f"oneDNN {self.version}: its interface is not known")
        self.engine, self.stream = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("dnnl_engine_create", ctypes.byref(self.engine), CPU, ctypes.c_size_t(0))
        self.call("dnnl_stream_create", ctypes.byref(self.stream), self.engine, IN_ORDER)

    def function(self, name, result=ctypes.c_int):
        f = getattr(self.lib, name)
        f.restype = result
        return f

    def call(self, name, *arguments):
        status = self.function(name)(*arguments)
        if status:
            raise RuntimeError(f"{name}: status {status}")

    def layout(self, rows, columns, dtype, strides=None):
        """A description of a matrix, by strides or whatever oneDNN likes best. In version 2 a struct of below 4 KiB,
        in 3 a pointer."""
        dims = (ctypes.c_int64 * 12)(rows, columns)
        by = "by" if self.major == 2 else "with"
        start = "dnnl_memory_desc_init_" if self.major == 2 else "dnnl_memory_desc_create_"
        md = ctypes.create_string_buffer(4096) if self.major == 2 else ctypes.c_void_p()
        at = md if self.major == 2 else ctypes.byref(md)
        if strides:
            self.call(f"{start}{by}_strides", at, 2, dims, dtype, (ctypes.c_int64 * 12)(*strides))
        else:
            self.call(f"{start}{by}_tag", at, 2, dims, dtype, ANY)
        return md

    def memory(self, md):
        """Of that layout, on large pages, filled. Returns the object and its bytes."""
        size = self.function("dnnl_memory_desc_get_size", ctypes.c_size_t)(md)
        data = mmap.mmap(-1, max(size, 1))
        if hasattr(mmap, "MADV_HUGEPAGE"):
            data.madvise(mmap.MADV_HUGEPAGE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(data))
        ctypes.memset(address, BYTE, size)
        memory = ctypes.c_void_p()
        self.call("dnnl_memory_create", ctypes.byref(memory), md, self.engine, ctypes.c_void_p(address))
        return memory, data

    def primitive(self, pd):
        p = ctypes.c_void_p()
        self.call("dnnl_primitive_create", ctypes.byref(p), pd)
        return p

    def run(self, primitive, arguments):
        array = (Argument * len(arguments))(*(Argument(k, m) for k, m in arguments.items()))
        self.call("dnnl_primitive_execute", primitive, self.stream, len(arguments), array)
        self.call("dnnl_stream_wait", self.stream)

    def seconds(self, m, n, k, form, dtype, packed, spend):
        """Median time of Y[m, n] = A B."""
        src = self.layout(m, k, dtype, (1, m) if form == "A'B" else (k, 1))
        stored = self.layout(k, n, dtype, (1, k) if form == "AB'" else (n, 1))
        weights = self.layout(k, n, dtype) if packed and form != "A'B" else stored
        out_type = F32 if form == "A'B" else dtype  # gradients of weights are fp32
        dst = self.layout(m, n, out_type, (n, 1))
        pd = ctypes.c_void_p()
        if self.major == 2:
            desc = ctypes.create_string_buffer(16384)
            self.call("dnnl_matmul_desc_init", desc, src, weights, None, dst)
            self.call("dnnl_primitive_desc_create", ctypes.byref(pd), desc, None, self.engine, None)
        else:
            self.call("dnnl_matmul_primitive_desc_create", ctypes.byref(pd), self.engine, src, weights, None, dst, None)
        matmul = self.primitive(pd)
        a, b, y = self.memory(src), self.memory(stored), self.memory(dst)
        if weights is not stored:
            chosen = ctypes.c_void_p(self.function("dnnl_primitive_desc_query_md", ctypes.c_void_p)(pd, WEIGHTS_MD, 0))
            w, reorder = self.memory(chosen), ctypes.c_void_p()
            self.call(
                "dnnl_reorder_primitive_desc_create",
                ctypes.byref(reorder),
                stored,
                self.engine,
                chosen,
                self.engine,
                None,
            )
            self.run(self.primitive(reorder), {FROM: b[0], TO: w[0]})
            b = w
        arguments = {SRC: a[0], WEIGHTS: b[0], DST: y[0]}
        self.run(matmul, arguments)
        self.check(bytes(y[1][:4]), k, out_type)
        times = []
        while len(times) < 3 or sum(times) < spend:
            begin = time.perf_counter()
            self.run(matmul, arguments)
            times.append(time.perf_counter() - begin)
        return statistics.median(times)

    @staticmethod
    def check(first, k, dtype):
        """The first element of Y is the sum of k equal products."""
        value = ctypes.c_float.from_buffer_copy(first if dtype == F32 else b"\0\0" + first[:2]).value
        each = ctypes.c_float.from_buffer_copy(bytes([BYTE] * 4) if dtype == F32 else bytes([0, 0, BYTE, BYTE])).value
        if abs(value / (k * each * each) - 1) > 0.01:
            raise RuntimeError(f"a sum of {k} products is {value}, not {k * each * each}")


def main():
    dnnl, spend, order = OneDnn(sys.argv[1]), float(sys.argv[2]), json.load(sys.stdin)
    dtype = {"f32": F32, "bf16": BF16}[order["dtype"]]
    result = {"version": dnnl.version}
    for how in ("packed", "plain"):
        result[how] = [
            1e3 * dnnl.seconds(p["m"], p["n"], p["k"], p["form"], dtype, how == "packed", spend)
            for p in order["products"]
        ]
    print(json.dumps(result))


if __name__ == "__main__":
    main()
