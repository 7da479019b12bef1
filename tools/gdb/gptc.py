"""Printers for gdb: types, values and ops of the graph IR, expressions of the kernel IR.

    (gdb) source tools/gdb/gptc.py
    (gdb) print *op
    $1 = %y: bf16[4,8] = matmul(%x: bf16[4,16], %w: bf16[16,8]) layer=3 loc("h3.mlp")
    (gdb) print expr
    $2 = (x[(i + 4)] * 0.5)

They read memory only and call nothing, so they work on a core file too.
"""
import gdb

MOST_NODES = 200  # of an expression


def text(string):
    """Of a std::string."""
    return string["_M_dataplus"]["_M_p"].string("utf-8", "replace", int(string["_M_string_length"]))


def enumerator(value):
    return str(value).rsplit("::", 1)[-1].rstrip("_")


def small_vector(vector, element):
    """Elements of an llvm::SmallVector, which are `element`s."""
    first = vector["BeginX"].cast(element.pointer())
    return [first[i] for i in range(int(vector["Size"]))]


def std_vector(vector):
    parts = vector["_M_impl"]
    return [parts["_M_start"][i] for i in range(int(parts["_M_finish"] - parts["_M_start"]))]


def type_text(t):
    dims = []
    for d in small_vector(t["dims"], gdb.lookup_type("gptc::Dim")):
        logical, padded = int(d["logical"]), int(d["padded"])
        dims.append(str(logical) if logical == padded else f"{logical}->{padded}")
    return f"{enumerator(t['dtype'])}[{','.join(dims)}]"


def op_name(op):
    kind = enumerator(op["kind"])
    return "return" if kind == "ret" else kind


def value_name(value):
    """As in the text; one without a name is called after what makes it."""
    if name := text(value["name"]):
        return "%" + name
    if value["def"]:
        return f"%<{op_name(value['def'].dereference())}>"
    return f"%<arg{int(value['index'])}>"


def value_text(value):
    return f"{value_name(value)}: {type_text(value['type'])}"


def op_text(op):
    pointer = gdb.lookup_type("gptc::Value").pointer()
    # A unique_ptr is its pointer in memory.
    results = [value_text(p.dereference()) for p in small_vector(op["res"], pointer)]
    operands = [value_text(p.dereference()) for p in small_vector(op["ops"], pointer)]
    state = text(op["state"])
    out = ", ".join(results) + (" = " if results else "") + op_name(op)
    out += (f" @{state}" if state else "") + f"({', '.join(operands)})"
    layer, loc = int(op["layer"]), text(op["loc"])
    return out + (f" layer={layer}" if layer >= 0 else "") + (f' loc("{loc}")' if loc else "")


SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "rem": "%", "and": "&", "or": "|", "xor": "^", "shl": "<<",
         "shr": ">>", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
CALLS = {"Fma": "fma", "Dot": "dot", "Select": "select", "Pair": "pair"}


class Expression:
    def __init__(self):
        self.left = MOST_NODES

    def text(self, node):
        self.left -= 1
        if self.left < 0:
            return "..."
        kind, dtype = enumerator(node["kind"]), enumerator(node["dtype"])
        args = [self.text(a["_M_ptr"].dereference()) for a in std_vector(node["args"])]
        joined = ", ".join(args)

        def place():
            return text(node["buffer"]["_M_ptr"]["name"])

        if kind == "IntImm":
            return str(int(node["ival"])) + ("" if dtype == "i64" else ":" + dtype)
        if kind == "FloatImm":
            return repr(float(node["fval"]))
        if kind == "Var":
            return text(node["var"]["_M_ptr"]["name"])
        if kind == "Lane":
            return "lane"
        if kind in ("Load", "LoadPair"):
            return f"{place()}[{joined}{':2' if kind == 'LoadPair' else ''}]"
        if kind == "Unary":
            return f"{enumerator(node['uop'])}({joined})"
        if kind == "Binary":
            op = enumerator(node["bop"])
            return f"({args[0]} {SIGNS[op]} {args[1]})" if op in SIGNS else f"{op}({joined})"
        if kind in CALLS:
            return f"{CALLS[kind]}({joined})"
        if kind == "Cast":
            return f"{dtype}({joined})"
        if kind == "Bitcast":
            return f"bits_{dtype}({joined})"
        if kind == "HReduce":
            return f"hreduce<{enumerator(node['bop'])}, {int(node['ival'])}>({place()}[{joined}])"
        return f"reduce<{enumerator(node['bop'])}, {enumerator(node['axis'])}, {int(node['fold'])}>({joined})"


class Printer:
    def __init__(self, value, show):
        self.value, self.show = value, show

    def to_string(self):
        return self.show(self.value)


def expr_text(node):
    return Expression().text(node)


def expr_pointer_text(pointer):
    node = pointer["_M_ptr"]
    return expr_text(node.dereference()) if node else "null"


SHOWN = {
    "gptc::Type": type_text,
    "gptc::Value": value_text,
    "gptc::Op": op_text,
    "gptc::kir::ExprNode": expr_text,
    "std::shared_ptr<gptc::kir::ExprNode const>": expr_pointer_text,
    "std::shared_ptr<const gptc::kir::ExprNode>": expr_pointer_text,
}


def find(value):
    if value.type.strip_typedefs().code in (gdb.TYPE_CODE_REF, gdb.TYPE_CODE_RVALUE_REF):
        value = value.referenced_value()
    kind = value.type.strip_typedefs().unqualified()
    show = SHOWN.get(kind.name or "")
    return Printer(value, show) if show else None


def register(objfile):
    """Of each file, as libstdc++'s printer of shared_ptr, which is a file's, comes before those of no file."""
    objfile.pretty_printers.insert(0, find)


for known in gdb.objfiles():
    register(known)
gdb.events.new_objfile.connect(lambda event: register(event.new_objfile))
