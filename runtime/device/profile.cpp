#include "runtime/device/profile.h"

#include "ir/facts.h"
#include "ir/opdef.h"
#include "support/diagnostics.h"
#include "support/files.h"
#include "support/json.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

namespace gptc {
namespace {

Cost costOf(const Op &fused) {
  Cost total;
  for (const Op &op : *fused.body)
    if (op.def().cost)
      total.flops += op.def().cost(op).flops;
  // Only operands and results of the group cause traffic.
  for (const Value *v : fused.operands())
    total.bytesRead += v->type.bytes();
  for (unsigned i = 0; i < fused.numResults(); ++i)
    total.bytesWritten += fused.result(i)->type.bytes();
  return total;
}

/// "h3.mlp.c_fc" -> "h*.mlp.c_fc": the table has one row for all layers.
std::string mergeLayers(const std::string &loc) {
  if (loc.size() < 2 || loc[0] != 'h' || !std::isdigit(loc[1]))
    return loc;
  size_t i = 1;
  while (i < loc.size() && std::isdigit(loc[i]))
    ++i;
  return i < loc.size() && loc[i] == '.' ? "h*" + loc.substr(i) : loc;
}

struct NonFinite {
  int64_t at = -1;  // none
  double value = 0;
};

/// The first of `n` elements whose exponent is all ones.
template <typename Bits> NonFinite findNonFinite(const void *data, int64_t n, Bits exponent, bool allowMinusInf) {
  constexpr Bits sign = Bits(Bits(1) << (8 * sizeof(Bits) - 1));
  for (int64_t i = 0; i < n; ++i) {
    Bits b;
    std::memcpy(&b, static_cast<const Bits *>(data) + i, sizeof b);
    if ((b & exponent) != exponent)
      continue;
    const bool isNan = Bits(b & ~sign) != exponent || sizeof(Bits) == 1, negative = b & sign;  // f8e4m3 has no infinity
    if (!isNan && negative && allowMinusInf)
      continue;
    return {i, isNan ? NAN : negative ? -INFINITY : INFINITY};
  }
  return {};
}

NonFinite findNonFinite(DType t, const void *data, int64_t n, bool allowMinusInf) {
  switch (t) {
  case DType::f64:
    return findNonFinite<uint64_t>(data, n, 0x7ff0000000000000u, allowMinusInf);
  case DType::f32:
    return findNonFinite<uint32_t>(data, n, 0x7f800000u, allowMinusInf);
  case DType::bf16:
    return findNonFinite<uint16_t>(data, n, 0x7f80, allowMinusInf);
  case DType::f16:
    return findNonFinite<uint16_t>(data, n, 0x7c00, allowMinusInf);
  case DType::f8e4m3:
    return findNonFinite<uint8_t>(data, n, 0x7f, allowMinusInf);
  default:
    return {};
  }
}

}  // namespace

std::string describe(const Op &fused) {
  std::string inside;
  int count = 0;
  for (const Op &op : *fused.body) {
    if (op.isOneOf(OpKind::yield, OpKind::constant, OpKind::cast))
      continue;
    if (++count > 5) {
      inside += "+...";
      break;
    }
    inside += (inside.empty() ? "" : "+") + op.name().str();
  }
  return fused.loc.empty() ? inside : fmt::format("{} ({})", fused.loc, inside);
}

void Profile::ran(const BoundKernel &kernel, int64_t begin, int64_t end) {
  Entry &e = entries[kernel.name];
  e.op = kernel.op;
  e.ns += end - begin;
  ++e.calls;
}

std::string Profile::table(int64_t steps) const {
  struct Row {
    int64_t ns = 0, calls = 0, kernels = 0;
    double flops = 0, bytes = 0;
  };
  std::map<std::pair<std::string, std::string>, Row> rows;
  int64_t total = 0;
  for (const auto &entry : entries) {
    const Entry &e = entry.second;
    std::string what = describe(*e.op);
    Row &r = rows[{mergeLayers(what), fact<&GroupFacts::kind>(*e.op)}];
    Cost c = costOf(*e.op);
    r.ns += e.ns;
    r.calls += e.calls;
    r.kernels += 1;
    r.flops += c.flops * e.calls;
    r.bytes += (c.bytesRead + c.bytesWritten) * e.calls;
    total += e.ns;
  }
  std::vector<std::pair<std::pair<std::string, std::string>, Row>> sorted(rows.begin(), rows.end());
  std::stable_sort(sorted.begin(), sorted.end(), [](auto &a, auto &b) { return a.second.ns > b.second.ns; });
  std::string text = fmt::format("{:>9} {:>6} {:>7} {:>9} {:>8}  {:<16} {}\n", "ms/step", "share", "kernels", "GFLOP/s",
                                 "GB/s", "recipe", "what");
  for (auto &[key, r] : sorted)
    text += fmt::format("{:9.3f} {:5.1f}% {:7} {:9.1f} {:8.1f}  {:<16} {}\n", r.ns / 1e6 / steps,
                        100.0 * r.ns / std::max<int64_t>(1, total), r.kernels, r.flops / std::max<int64_t>(1, r.ns),
                        r.bytes / std::max<int64_t>(1, r.ns), key.second, key.first);
  return text +
         fmt::format("{:9.3f} 100.0% {:7}                     all kernels\n", total / 1e6 / steps, entries.size());
}

void Trace::add(const Op &kernel, int64_t begin, int64_t end) {
  events.push_back({describe(kernel), fact<&GroupFacts::kind>(kernel), begin, end, true});
}

void Trace::ran(const BoundKernel &kernel, int64_t begin, int64_t end) { add(*kernel.op, begin, end); }

void Trace::span(const std::string &name, int64_t begin, int64_t end) {
  events.push_back({name, "", begin, end, false});
}

void Trace::write(const std::string &path) const {
  const int process = of == Of::run ? 1 : 2;
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  list.push_back({{"name", "process_name"},
                  {"ph", "M"},
                  {"pid", process},
                  {"args", {{"name", of == Of::run ? "measured" : "forecast"}}}});
  int64_t origin = events.empty() ? 0 : events[0].begin;
  for (const Event &e : events)
    origin = std::min(origin, e.begin);
  for (const Event &e : events)
    list.push_back({{"name", e.name},
                    {"cat", e.kernel ? e.recipe : "step"},
                    {"ph", "X"},
                    {"pid", process},
                    {"tid", e.kernel ? 2 : 1},
                    {"ts", (e.begin - origin) / 1e3},
                    {"dur", (e.end - e.begin) / 1e3}});
  writeSynced(path, nlohmann::ordered_json{{"traceEvents", list}, {"displayTimeUnit", "ms"}}.dump() + "\n");
}

std::string firstNonFinite(const Type &type, const void *data, bool allowMinusInf) {
  const unsigned size = sizeOf(type.dtype);
  // Row by row, because padding does not count.
  const int64_t row = type.isScalar() ? 1 : type.dim(-1), rows = type.rows();
  std::vector<int64_t> at(std::max(1u, type.rank()), 0);
  for (int64_t r = 0; r < rows; ++r) {
    int64_t padded = 0;
    for (unsigned d = 0; d < type.rank(); ++d)
      padded = padded * type.padded(d) + at[d];
    const char *p = static_cast<const char *>(data) + padded * size;
    if (const NonFinite found = findNonFinite(type.dtype, p, row, allowMinusInf); found.at >= 0) {
      if (type.isScalar())
        return fmt::format("= {}", found.value);
      at.back() = found.at;
      return fmt::format("[{}] = {}", fmt::join(at, ","), found.value);
    }
    for (int d = int(type.rank()) - 2; d >= 0 && ++at[d] == type.dim(d); --d)
      at[d] = 0;
  }
  return "";
}

void NonFiniteScan::ran(const BoundKernel &kernel, int64_t, int64_t) {
  if (!first.empty())
    return;
  bool masks = false;
  for (const Op &op : *kernel.op->body)
    masks |= op.is(OpKind::causal_mask);
  for (unsigned i = 0; i < kernel.op->numResults(); ++i)
    if (std::string where = firstNonFinite(kernel.op->result(i)->type, kernel.result(i), masks); !where.empty()) {
      first = fmt::format("{}, kernel {}, result {} {}", describe(*kernel.op), kernel.name, i, where);
      return;
    }
  ++before;
}

void CheckedKernels::ran(const BoundKernel &kernel, int64_t begin, int64_t end) {
  GPTC_CHECK(executor.intact(), "kernel {}, {}, wrote past the end of the arena", kernel.name, describe(*kernel.op));
  NonFiniteScan::ran(kernel, begin, end);
}

}  // namespace gptc
