// gptc-opt: runs passes on a module in text form, for tests, for inspecting a pass, and for reproducing failures.
#include "codegen/codegen.h"
#include "codegen/cuda/emit.h"
#include "codegen/cuda/jit.h"
#include "codegen/cuda/nvrtc.h"
#include "ir/facts.h"
#include "ir/graph.h"
#include "ir/opdef.h"
#include "passes/pass.h"
#include "support/diagnostics.h"
#include "tools/commands/command_line.h"
#include "tools/commands/main_guard.h"
#include "tools/commands/reference_pages.h"
#include "tools/planner/codegen_passes.h"
#include "tools/planner/gir_file.h"

#include <set>

using namespace gptc;

/// Graphviz text with a cluster per function, a node per op and an edge per operand.
static std::string dot(const Module &m) {
  std::string out = "digraph module {\n  node [shape=box, fontname=monospace];\n";
  for (const auto &f : m.functions) {
    llvm::DenseMap<const Op *, unsigned> number;
    auto node = [&](const Op *op) { return fmt::format("{}_{}", f->name, number[op]); };
    out += fmt::format("  subgraph \"cluster_{0}\" {{\n    label=\"@{0}\";\n", f->name);
    for (const auto &a : f->body.args)
      out += fmt::format("    \"{}_arg{}\" [label=\"%{}: {}\", style=rounded];\n", f->name, a->index, a->name,
                         a->type.str());
    for (const Op &op : f->body) {
      number[&op] = number.size();
      std::string label = op.name().str();
      if (op.is(OpKind::fused)) {
        label = fact<&GroupFacts::kind>(op) + ":";
        for (const Op &inner : *op.body)
          if (!inner.isOneOf(OpKind::yield, OpKind::constant))
            label += " " + inner.name().str();
      }
      if (!op.state.empty())
        label += " @" + op.state;
      for (unsigned i = 0; i < op.numResults(); ++i)
        label += "\\n" + op.result(i)->type.str();
      out += fmt::format("    \"{}\" [label=\"{}\"];\n", node(&op), label);
      for (const Value *v : op.operands())
        out += fmt::format("    \"{}\" -> \"{}\";\n",
                           v->def ? node(v->def) : fmt::format("{}_arg{}", f->name, v->index), node(&op));
    }
    out += "  }\n";
  }
  return out + "}\n";
}

/// CUDA or PTX text of a kernel; `symbol` is its name in runs and profiles.
static std::string cuda(const kir::Kernel &k, const std::string &symbol, const Target &target, bool ptx) {
  const std::string text = emitCuda(k, symbol).text;
  return ptx ? Nvrtc::get().compile(text, target).ptx : text;
}

/// The kernel of every group as kernel IR, LLVM IR, CUDA C++ or PTX; in the latter two, equal kernels appear once.
static std::string kernels(const Module &m, const Target &target, const std::string &emit) {
  std::string out;
  const char *comment = emit == "llvm" ? ";" : "//";
  std::set<std::string> shown;
  for (const auto &f : m.functions)
    for (const Op &op : f->body) {
      if (!op.is(OpKind::fused))
        continue;
      out += fmt::format("{} @{} {}\n", comment, f->name, op.loc);
      Schedule s;
      // A schedule for the other kind of target does not apply.
      if (!Schedule::parse(fact<&GroupFacts::schedule>(op), s) || (s.threads > 0) != target.isCuda())
        s = defaultSchedule(op, target);
      const kir::Kernel k = lowerGroup(op, s, target).kernel;
      if (emit == "cuda" || emit == "ptx") {
        const std::string symbol = cudaSymbol(k);
        out += shown.insert(symbol).second ? cuda(k, symbol, target, emit == "ptx")
                                           : fmt::format("// {}, which stands above\n", symbol);
      } else {
        out += emit == "llvm" ? emitLLVM(k, target, true) : kir::print(k);
      }
      out += '\n';
    }
  return out;
}

static int run(int argc, char **argv) {
  std::string input = "-", passes, emit = "gir", targetName;
  bool verifyEach = true, listPasses = false, listOps = false, listErrors = false;
  PipelineOptions options;
  CommandLine app("gptc-opt", "Runs passes on a module of the graph IR and prints the result.");
  app.option("input", input, "a .gir file, or - for standard input").type("FILE.gir");
  app.option("--passes", passes, "e.g. 'autodiff,optimizer,fuse{max=8}'; 'default' stands for the whole pipeline");
  app.flag("--verify-each,!--no-verify-each", verifyEach, "run the verifier after each pass (default)");
  app.flag("--print-changed", options.printChanged, "print the module after each pass that changed it, to stderr");
  app.flag("--time-passes", options.timePasses, "print a table of times to stderr");
  app.option("--dump-dir", options.dumpDir, "write the module after each pass into this folder").type("DIR");
  app.option("--emit", emit, "gir, dot, kernel, llvm, cuda, ptx or none")
      .oneOf({"gir", "dot", "kernel", "llvm", "cuda", "ptx", "none"});
  app.option("--target", targetName,
             "cpu (default: this machine's), cuda:sm_80 and the like (default of --emit=cuda and ptx), or none: "
             "passes know no machine");
  app.flag("--list-passes", listPasses, "print the passes and their options");
  app.flag("--list-ops", listOps, "print docs/ops.md: every op of the graph IR");
  app.flag("--list-errors", listErrors, "print docs/errors.md: every error code");
  if (std::optional<int> done = app.parse(argc, argv))
    return *done;
  if (listPasses + listOps + listErrors > 1)
    throw UserError(ErrorCode::Usage, "gptc-opt prints --list-passes, --list-ops or --list-errors: one of them",
                    "run it once for each");
  if ((listOps || listErrors) && argc > 2)
    throw UserError(ErrorCode::Usage, fmt::format("--list-{} stands alone", listOps ? "ops" : "errors"),
                    "the page is of no module and of no passes");
  if (listOps || listErrors) {
    fmt::print("{}", listOps ? opsPage() : errorsPage());
    return 0;
  }
  const bool isCudaText = emit == "cuda" || emit == "ptx";
  if (targetName.empty())
    targetName = isCudaText ? "cuda:sm_80" : "cpu";
  const bool known = targetName != "none";
  const Target target = targetName == "cpu" || !known ? hostTarget() : cudaTarget(targetName);
  if (target.isCuda() ? emit == "llvm" : isCudaText || (!known && (emit == "llvm" || emit == "kernel")))
    throw UserError(ErrorCode::Usage, fmt::format("--emit={} is not for --target={}", emit, targetName),
                    target.isCuda() ? "use --emit=cuda, ptx or kernel"
                    : isCudaText    ? "use --target=cuda:sm_80 or the like"
                                    : "use --target=cpu");
  options.verifyEach = verifyEach;
  registerCodegenPasses();
  if (listPasses) {
    for (const PassInfo &p : allPasses()) {
      fmt::print("{:19} {}\n", p.name, p.summary);
      for (const PassOption &o : p.options)
        fmt::print("{:19} {{{}=...}}: {}\n", "", o.name, o.allowed());
    }
    return 0;
  }

  std::vector<PassUse> uses = parsePipeline(passes, known ? &target : nullptr);
  if (!known && llvm::any_of(uses, [](const PassUse &u) { return llvm::StringRef(u.pass->name) == "select-recipes"; }))
    throw UserError(ErrorCode::Usage, "select-recipes is not for --target=none", "use --target=cpu");
  std::unique_ptr<Module> m = loadGir(input);
  runPipeline(*m, uses, options);
  std::string text;
  if (emit == "gir")
    text = print(*m);
  else if (emit == "dot")
    text = dot(*m);
  else if (emit != "none")
    text = kernels(*m, target, emit);
  std::fwrite(text.data(), 1, text.size(), stdout);
  return 0;
}

int main(int argc, char **argv) {
  return guardedMain([&] { return run(argc, argv); });
}
