// The schema of cluster.toml, one call per key, like toml_config.cpp.
#include "frontends/cluster_config.h"

#include "frontends/config_reader.h"
#include "frontends/device_plausible.h"
#include "support/files.h"
#include "support/words.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>

namespace gptc {

double DeviceSpec::efficiencyAt(double rows) const {
  if (efficiency.empty())
    return 1;
  auto above = llvm::partition_point(efficiency, [&](const auto &p) { return p.first < rows; });
  if (above == efficiency.begin())
    return above->second;
  auto below = std::prev(above);
  if (above == efficiency.end())
    return below->second;
  return below->second + (above->second - below->second) * (rows - below->first) / (above->first - below->first);
}

double DeviceSpec::peak(const std::string &compute) const {
  const double p = compute == "bf16" ? bf16 : compute == "fp16" ? fp16 : compute == "tf32" ? tf32 : fp32;
  return p > 0 ? p : fp32;
}

namespace {

/// A unit of measurement, and the range of values that machines can have.
struct Unit {
  const char *what, *name;  // "a rate of arithmetic", "FLOP/s"
  std::vector<const char *> spellings;
  double least, most;
};
const Unit flops{"a rate of arithmetic", "FLOP/s", {"FLOP/s", "FLOPS", "FLOPs/s", "flop/s", "flops"}, 1e9, 1e17};
const Unit bandwidth{"a bandwidth", "B/s", {"B/s", "Bps"}, 1e6, 1e14};
const Unit bytesUnit{"an amount of memory", "B", {"B"}, 1e6, 1e16};
const Unit seconds{"a time", "s", {"s"}, 0, 1e5};

struct Prefix {
  const char *text;
  double factor;
};
constexpr Prefix prefixes[] = {{"", 1},        {"k", 1e3},  {"K", 1e3},     {"M", 1e6},     {"G", 1e9},
                               {"T", 1e12},    {"P", 1e15}, {"Ki", 1024.0}, {"Mi", 0x1p20}, {"Gi", 0x1p30},
                               {"Ti", 0x1p40}, {"m", 1e-3}, {"u", 1e-6},    {"n", 1e-9}};

/// The number of units in "312 TFLOP/s"; nullopt without a number or a unit of this kind. "Gb/s" are bits.
std::optional<double> parseQuantity(llvm::StringRef text, const Unit &unit) {
  text = text.trim();
  const size_t end = std::min(text.find_first_not_of("0123456789.eE+-"), text.size());
  llvm::StringRef number = text.take_front(end), rest = text.drop_front(end).ltrim();
  double n;
  if (number.empty() || number.getAsDouble(n))
    return std::nullopt;
  for (const Prefix &p : prefixes) {
    if (!rest.starts_with(p.text) || (&unit != &seconds && p.factor < 1))
      continue;
    const llvm::StringRef name = rest.drop_front(llvm::StringRef(p.text).size());
    if (llvm::is_contained(unit.spellings, name))
      return n * p.factor;
    if (&unit == &bandwidth && (name == "b/s" || name == "bit/s" || name == "bps"))
      return n * p.factor / 8;
  }
  return std::nullopt;
}

std::string withPrefix(double n, const char *unit) {
  for (const Prefix &p : {Prefix{"P", 1e15}, Prefix{"T", 1e12}, Prefix{"G", 1e9}, Prefix{"M", 1e6}, Prefix{"k", 1e3}})
    if (std::abs(n) >= p.factor * 0.9995)
      return fmt::format("{:.4g} {}{}", n / p.factor, p.text, unit);
  return fmt::format("{:.4g} {}", n, unit);
}

class ClusterReader {
public:
  ClusterReader(ConfigReader &r) : r(r) {}

  void quantity(const char *key, double &out, const Unit &unit, bool zero = false) {
    const TomlValue *v = r.get(key);
    if (!v)
      return;
    auto *text = std::get_if<std::string>(&v->value);
    double plain = 0;
    const bool number = std::get_if<int64_t>(&v->value) || std::get_if<double>(&v->value);
    if (number)
      plain = std::get_if<int64_t>(&v->value) ? double(std::get<int64_t>(v->value)) : std::get<double>(v->value);
    else if (text && !llvm::StringRef(*text).trim().getAsDouble(plain))
      text = nullptr;  // a bare number in quotes
    else if (!text)
      return r.complain(key, ErrorCode::WrongType, fmt::format("{} must be a string with a unit", key),
                        fmt::format("this is {}", v->kind()), {fmt::format("such as \"{}\"", example(unit))});
    if (!text)
      return r.complain(key, ErrorCode::WrongType, fmt::format("{} = {} has no unit", key, plain),
                        fmt::format("{} is wanted", unit.what), {fmt::format("such as \"{}\"", likely(plain, unit))});
    std::optional<double> n = parseQuantity(*text, unit);
    if (!n || !std::isfinite(*n))
      return r.complain(key, ErrorCode::WrongType, fmt::format("{} = \"{}\" is not {}", key, *text, unit.what), "",
                        {fmt::format("a number and a unit, such as \"{}\"", example(unit))});
    if (zero && *n == 0) {
      out = 0;
      return;
    }
    if (!(*n >= unit.least && *n <= unit.most))
      return r.complain(
          key, ErrorCode::OutOfRange,
          fmt::format("{} = \"{}\": no machine has {}", key, *text, withPrefix(*n, unit.name)),
          fmt::format("{} to {} can be", withPrefix(unit.least, unit.name), withPrefix(unit.most, unit.name)),
          {*n > 0 ? fmt::format("did you mean \"{}\"?", likely(mantissaOf(*text), unit))
                  : fmt::format("such as \"{}\"", example(unit))});
    out = *n;
  }

  void fitted(const char *key, Fitted &out, const Unit &unit, bool zero = false) {
    double value = out.value;
    const bool written = r.get(key);
    quantity(key, value, unit, zero);
    if (written && r.good(key))
      out = Fitted(value);
  }

  /// Reads the interval [low, high] of a fitted scalar, as `gptc calibrate` writes it.
  void interval(const char *key, Fitted &of, const Unit *unit) {
    const TomlValue *v = r.get(key);
    if (!v)
      return;
    auto *items = std::get_if<std::vector<TomlValue>>(&v->value);
    std::vector<double> ends;
    if (items)
      for (const TomlValue &item : *items) {
        if (auto *s = std::get_if<std::string>(&item.value); s && unit) {
          if (std::optional<double> n = parseQuantity(*s, *unit))
            ends.push_back(*n);
        } else if (auto *d = std::get_if<double>(&item.value); d && !unit) {
          ends.push_back(*d);
        } else if (auto *i = std::get_if<int64_t>(&item.value); i && !unit) {
          ends.push_back(double(*i));
        }
      }
    if (ends.size() != 2 || !items || items->size() != 2 || !(ends[0] <= ends[1]))
      return r.complain(key, ErrorCode::WrongType, fmt::format("{} must be the low and the high end", key), "",
                        {!unit              ? "such as [0.9, 1.1]"
                         : unit == &seconds ? "such as [\"0.7 s\", \"1.1 s\"]"
                                            : "such as [\"4 GB/s\", \"6 GB/s\"]"});
    of.low = ends[0];
    of.high = ends[1];
  }

  /// A number of tokens: plain, or a string as parseTokens reads it.
  void tokens(const char *key, double &out, double most) {
    const TomlValue *v = r.get(key);
    const auto *text = v ? std::get_if<std::string>(&v->value) : nullptr;
    if (!text)
      return r.number(key, out, 0, most, true);
    const std::optional<double> n = parseTokens(*text);
    if (!n || *n > most)
      return r.complain(key, ErrorCode::WrongType, fmt::format("{} = \"{}\" is no number of tokens", key, *text),
                        fmt::format("1 to {:g}", most), {"such as \"100B\": K, M, B or T behind a number"});
    out = *n;
  }

private:
  ConfigReader &r;
  static std::string example(const Unit &unit) {
    return &unit == &flops ? "312 TFLOP/s" : &unit == &bandwidth ? "50 GB/s" : &unit == &bytesUnit ? "80 GiB" : "20 us";
  }
  static double mantissaOf(llvm::StringRef text) {
    double n = 0;
    text = text.trim();
    text.take_front(text.find_first_not_of("0123456789.eE+-")).getAsDouble(n);
    return n;
  }
  /// The number with the bare unit if a machine can have that value, else with the likeliest prefix: T for FLOP/s, G
  /// for others.
  static std::string likely(double n, const Unit &unit) {
    if (&unit != &seconds && n >= unit.least && n <= unit.most)
      return withPrefix(n, unit.name);
    if (&unit == &seconds)
      return fmt::format("{:.6g} us", n);
    return fmt::format("{:.6g} {}{}", n, &unit == &flops ? "T" : &unit == &bytesUnit ? "Gi" : "G", unit.name);
  }
};

void readDevice(ConfigReader &r, DeviceSpec &d) {
  ClusterReader c(r);
  std::string kind = "gpu";
  r.choice("device.kind", kind, {"gpu", "cpu"});
  d.isCpu = kind == "cpu";
  r.string("device.name", d.name);
  c.quantity("device.peak_fp32", d.fp32, flops);
  c.quantity("device.peak_tf32", d.tf32, flops);
  c.quantity("device.peak_fp16", d.fp16, flops);
  c.quantity("device.peak_bf16", d.bf16, flops);
  c.quantity("device.memory", d.memory, bytesUnit);
  c.quantity("device.memory_bandwidth", d.bandwidth, bandwidth);
  c.quantity("device.cache_bandwidth", d.cacheBandwidth, bandwidth);
  c.quantity("device.cache", d.cacheBytes, bytesUnit, true);
  c.quantity("device.launch", d.launch, seconds, true);
  r.boolean("device.packs", d.packs);
  const std::pair<const char *, double *> shares[] = {{"device.matmul", &d.matmul},
                                                      {"device.attention", &d.attention},
                                                      {"device.attention_grad", &d.attentionGrad},
                                                      {"device.elementwise", &d.elementwise},
                                                      {"device.scatter", &d.scatter}};
  for (auto &[key, out] : shares)
    r.number(key, *out, 0, 1, true);
  if (const TomlValue *v = r.get("device.efficiency")) {
    auto *items = std::get_if<std::vector<TomlValue>>(&v->value);
    bool good = items && !items->empty();
    for (size_t i = 0; good && i < items->size(); ++i) {
      auto *pair = std::get_if<std::vector<TomlValue>>(&(*items)[i].value);
      double xy[2] = {0, 0};
      good = pair && pair->size() == 2;
      for (int k = 0; good && k < 2; ++k) {
        if (auto *d = std::get_if<double>(&(*pair)[k].value))
          xy[k] = *d;
        else if (auto *n = std::get_if<int64_t>(&(*pair)[k].value))
          xy[k] = double(*n);
        else
          good = false;
      }
      good =
          good && xy[0] > 0 && xy[1] > 0 && xy[1] <= 1 && (d.efficiency.empty() || xy[0] > d.efficiency.back().first);
      if (good)
        d.efficiency.push_back({xy[0], xy[1]});
    }
    if (!good)
      r.complain("device.efficiency", ErrorCode::WrongType,
                 "device.efficiency must be pairs of rows and a share, rows rising", "",
                 {"such as [[256, 0.6], [1024, 0.85], [4096, 1.0]]: products of 256 rows reach 60% of device.matmul"});
  }
  const std::pair<const char *, double> needed[] = {
      {"device.peak_fp32", d.fp32}, {"device.memory", d.memory}, {"device.memory_bandwidth", d.bandwidth}};
  for (auto &[key, value] : needed)
    if (!(value > 0) && r.good(key))
      r.missing(key,
                fmt::format("its data sheet has it, as in {} = \"{}\"", llvm::StringRef(key).split('.').second.str(),
                            key == std::string("device.peak_fp32") ? "19.5 TFLOP/s"
                            : key == std::string("device.memory")  ? "80 GiB"
                                                                   : "2039 GB/s"));
  // A 16-bit or TF32 peak below fp32's has a mistyped prefix or belongs to another device.
  const std::pair<const char *, double> low[] = {
      {"device.peak_tf32", d.tf32}, {"device.peak_fp16", d.fp16}, {"device.peak_bf16", d.bf16}};
  for (auto &[key, value] : low)
    if (!d.isCpu && value > 0 && value < d.fp32 && r.good(key) && r.good("device.peak_fp32")) {
      std::vector<std::string> help;
      if (value * 1000 >= d.fp32 && value * 1000 <= 100 * d.fp32)  // tensor cores are about ten times as fast
        help.push_back(fmt::format("did you mean \"{}\"?", withPrefix(value * 1000, flops.name)));
      help.push_back("its data sheet has the dense peak of tensor cores; left out it is peak_fp32");
      r.complain(key, ErrorCode::OutOfRange,
                 fmt::format("{} = \"{}\": no GPU multiplies {} slower than fp32", key, withPrefix(value, flops.name),
                             llvm::StringRef(key).split('_').second.str()),
                 fmt::format("must be at least peak_fp32 = \"{}\"", withPrefix(d.fp32, flops.name)), help);
    }
  if (!d.cacheBandwidth)
    d.cacheBandwidth = 2.5 * d.bandwidth;
}

/// Complains about values that are possible but do not belong to such a device.
void holdAgainstDevices(ConfigReader &r, DeviceSpec d) {
  const std::pair<const char *, double *> read[] = {{"device.peak_fp32", &d.fp32},
                                                    {"device.peak_tf32", &d.tf32},
                                                    {"device.peak_fp16", &d.fp16},
                                                    {"device.peak_bf16", &d.bf16},
                                                    {"device.memory_bandwidth", &d.bandwidth}};
  for (auto &[key, value] : read)
    if (!r.good(key))
      *value = 0;
  for (const Implausible &i : implausible(d))
    r.complain(i.key, ErrorCode::OutOfRange, fmt::format("{} = {}: {}", i.key, r.get(i.key)->text(), i.message),
               i.label,
               {i.likely.empty() ? "look it up in the data sheet" : fmt::format("did you mean \"{}\"?", i.likely)});
}

void readSoftware(ConfigReader &r, SoftwareSpec &s, NetworkSpec &n) {
  ClusterReader c(r);
  r.string("software.name", s.name);
  s.where = r.where("software.name");
  if (!s.isGptc()) {
    s.slowdown.known = s.stepOverhead.known = false;
    s.fusedAttention = s.fusedLoss = s.paddedVocab = s.fusedKernels = false;
  }
  double slowdown = s.slowdown;
  // For other software it is relative to the peak, which nothing exceeds; for gptc, to what kernels usually reach.
  r.number("software.slowdown", slowdown, s.isGptc() ? 0.01 : 1, 1000);
  if (r.get("software.slowdown") && r.good("software.slowdown"))
    s.slowdown = Fitted(slowdown);
  c.interval("software.slowdown_interval", s.slowdown, nullptr);
  c.fitted("software.step_overhead", s.stepOverhead, seconds, true);
  c.interval("software.step_overhead_interval", s.stepOverhead, &seconds);
  double scatter = 1;
  r.number("software.scatter", scatter, 1, 100);
  if (r.get("software.scatter") && r.good("software.scatter"))
    s.scatter = scatter;
  r.number("software.overlap", s.overlap, 0, 1);
  r.number("software.fragmentation", s.fragmentation, 0, 1);
  c.quantity("software.context", s.context, bytesUnit, true);
  r.boolean("software.fused_attention", s.fusedAttention);
  r.boolean("software.fused_loss", s.fusedLoss);
  r.boolean("software.fused_kernels", s.fusedKernels);
  r.boolean("software.padded_vocab", s.paddedVocab);
  r.choice("software.zero1", s.zero1, {"reduce_scatter", "all_reduce"});
  r.choice("software.gradients", s.gradients, {"fp32", "compute"});
  r.integer("software.powersgd_rank", s.powersgdRank, 1, 1024);
  c.quantity("network.nominal", n.nominal, bandwidth);
  c.fitted("network.effective", n.effective, bandwidth);
  c.interval("network.effective_interval", n.effective, &bandwidth);
  if (n.nominal > 0 && n.effective.known && n.effective > n.nominal && r.good("network.nominal") &&
      r.good("network.effective"))
    r.complain("network.effective", ErrorCode::OutOfRange,
               fmt::format("network.effective = {} is more than network.nominal = {}", formatBandwidth(n.effective),
                           formatBandwidth(n.nominal)),
               "nothing goes faster than the data sheet says",
               {fmt::format("at most \"{}\"", formatBandwidth(n.nominal))});
  c.quantity("network.latency", n.latency, seconds, true);
}

/// Keys of an observation that abbreviate keys of model.toml.
constexpr std::pair<const char *, const char *> shorts[] = {{"observation.zero_stage", "parallel.zero_stage"},
                                                            {"observation.tensor", "parallel.tensor"},
                                                            {"observation.offload", "parallel.offload"},
                                                            {"observation.compression", "parallel.compression"},
                                                            {"observation.optimizer", "optimizer.name"},
                                                            {"observation.micro_batch", "train.micro_batch"},
                                                            {"observation.block_size", "model.block_size"},
                                                            {"observation.compute", "precision.compute"},
                                                            {"observation.remat", "compile.remat"}};

void readObservation(ConfigReader &r, const std::string &file, Observation &o) {
  ClusterReader c(r);
  o.where = r.where("observation");
  r.string("observation.model", o.model);
  if (o.model.empty() && r.good("observation.model"))
    r.missing("observation.model", "name the model.toml that ran");
  else
    o.model = resolveBeside(o.model, file);
  r.integer("observation.gpus", o.gpus, 1, 1 << 20);
  if (!o.gpus && r.good("observation.gpus"))
    r.missing("observation.gpus", "say on how many it ran");
  for (auto &[key, full] : shorts)
    if (const TomlValue *v = r.get(key)) {
      if (auto *text = std::get_if<std::string>(&v->value); text && *text == "auto")
        r.complain(key, ErrorCode::Contradiction, fmt::format("{} = \"auto\" says nothing of what ran", key), "",
                   {"write what it was, as the log has it"});
      o.settings.push_back(fmt::format("{}={}", full, v->text()));
    }
  r.integer("observation.pipeline", o.pipeline, 1, 1024);
  int64_t accumulate = 0;
  r.integer("observation.accumulate", accumulate, 1, 1 << 20);
  if (accumulate)
    o.settings.push_back(fmt::format("accumulate={}", accumulate));
  if (const TomlValue *v = r.get("observation.set")) {
    auto *items = std::get_if<std::vector<TomlValue>>(&v->value);
    bool good = items;
    for (const TomlValue &item : items ? *items : std::vector<TomlValue>()) {
      auto *text = std::get_if<std::string>(&item.value);
      good &= text && llvm::StringRef(*text).find('=') + 1 > 1;  // needs a key before the =
      if (good)
        o.settings.push_back(*text);
    }
    if (!good)
      r.complain("observation.set", ErrorCode::WrongType, "observation.set must be a list of key=value", "",
                 {"such as [\"model.n_layer=24\"]"});
  }
  r.string("observation.name", o.name);
  r.number("observation.days", o.days, 0, 1e7, true);
  c.tokens("observation.tokens", o.tokens, 1e18);
  c.quantity("observation.step", o.secondsPerStep, seconds);
  r.number("observation.tokens_per_s", o.tokensPerSecond, 0, 1e15, true);
  c.quantity("observation.memory", o.bytesPeak, bytesUnit);
  r.boolean("observation.out_of_memory", o.outOfMemory);
  r.boolean("observation.fit", o.fit);
  const int seen = (o.days > 0) + (o.secondsPerStep > 0) + (o.tokensPerSecond > 0);
  if (seen > 1)
    r.complain(o.days > 0 ? "observation.days" : "observation.step", ErrorCode::Contradiction,
               "the same speed is said in more than one way", "one of days, step and tokens_per_s is enough",
               {"leave the others out"});
  else if (seen && o.outOfMemory)
    r.complain("observation.out_of_memory", ErrorCode::Contradiction, "a run that had no memory has no speed",
               "and this observation has both", {"leave out out_of_memory if it ran, the speed if it did not"});
  else if (!seen && !o.outOfMemory && o.bytesPeak == 0 && r.good("observation.days") && r.good("observation.step") &&
           r.good("observation.tokens_per_s"))
    r.missing("observation.days",
              "an observation needs what was seen: days (and tokens), step, tokens_per_s, memory or "
              "out_of_memory = true");
}

}  // namespace

ClusterConfig loadCluster(const std::string &file) {
  TomlDocument doc = parseToml(readInput(file, "cluster file", kConfigLimit), file);
  ClusterConfig c;
  c.file = file;
  ConfigReader r(file, doc.values, doc.tables, true);
  int64_t schema = 1;
  r.integer("schema", schema, 1, 1);
  r.string("name", c.name);
  if (c.name.empty())
    c.name = std::filesystem::path(file).stem().string();
  readDevice(r, c.device);
  ClusterReader q(r);
  r.integer("node.devices", c.node.devices, 1, 1 << 16);
  q.quantity("node.bandwidth", c.node.bandwidth, bandwidth);
  q.quantity("node.latency", c.node.latency, seconds, true);
  q.quantity("node.host_link", c.node.hostLink, bandwidth);
  q.quantity("node.host_memory", c.node.hostMemory, bytesUnit);
  q.quantity("node.host_bandwidth", c.node.hostBandwidth, bandwidth);
  readSoftware(r, c.software, c.network);
  r.tokens("limits.global_batch_tokens", c.limits.globalBatchTokens, 1, int64_t(1) << 40);
  r.number("limits.price", c.limits.price, 0, 1e6);
  r.string("limits.currency", c.limits.currency);
  if (c.device.name.empty())
    c.device.name = c.name;
  holdAgainstDevices(r, c.device);
  r.eachTable("observation", [&](ConfigReader &one) { readObservation(one, file, c.observations.emplace_back()); });
  if (c.node.devices > 1 && !c.node.bandwidth && r.good("node.bandwidth"))
    r.missing("node.bandwidth", "the bus bandwidth of an all-reduce within a node, as in bandwidth = \"230 GB/s\"");
  r.unknownKeys({{"observation", "there may be several: write [[observation]], with two brackets"}});
  r.finish();
  if (!c.network.effective.known)
    c.network.effective.value = c.network.effective.low = c.network.effective.high = c.network.nominal;
  for (size_t i = 0; i < c.observations.size(); ++i)
    if (c.observations[i].name.empty())
      c.observations[i].name = fmt::format("row {}", i + 1);
  return c;
}

namespace {

/// Number of brackets that a line of TOML opens, minus those it closes.
int bracketsOf(llvm::StringRef line) {
  int n = 0;
  char quote = 0;
  for (char c : line) {
    if (quote)
      quote = c == quote ? 0 : quote;
    else if (c == '"' || c == '\'')
      quote = c;
    else if (c == '#')
      break;
    else
      n += (c == '[') - (c == ']');
  }
  return n;
}

/// Replaces the lines of `keys` in [table] by `wanted`, or appends `wanted` to the table, which is made if need be.
std::string withKeys(llvm::StringRef text, llvm::StringRef table, llvm::ArrayRef<std::string> keys,
                     llvm::ArrayRef<std::string> wanted) {
  llvm::SmallVector<llvm::StringRef> old;
  text.rtrim('\n').split(old, '\n');
  std::vector<std::string> lines;
  std::optional<size_t> place, last;  // of the old keys, and after the table
  bool inside = false, replaced = false;
  int open = 0;  // open brackets of a value that continues
  for (llvm::StringRef line : old) {
    if (open <= 0) {
      const auto [key, value] = line.trim().split('=');
      if (key.starts_with("["))
        inside = line.trim().starts_with(fmt::format("[{}]", table.str()));
      replaced = inside && !value.empty() && llvm::is_contained(keys, key.trim().str());
      if (replaced && !place)
        place = lines.size();
      open = key.starts_with("[") ? 0 : bracketsOf(line);
    } else {
      open += bracketsOf(line);
    }
    if (replaced)
      continue;
    lines.push_back(line.str());
    if (inside && !line.trim().empty())
      last = lines.size();
  }
  if (!last && wanted.empty())
    return text.str();
  if (!last) {
    lines.insert(lines.end(), {"", fmt::format("[{}]", table.str())});
    last = lines.size();
  }
  lines.insert(lines.begin() + long(place.value_or(*last)), wanted.begin(), wanted.end());
  return llvm::join(lines, "\n") + "\n";
}

}  // namespace

std::string movedTo(const std::string &text, const std::string &from, const std::string &to) {
  namespace fs = std::filesystem;
  auto folderOf = [](const std::string &file) { return fs::absolute(file).lexically_normal().parent_path(); };
  const fs::path old = folderOf(from), now = folderOf(to);
  if (old == now)
    return text;
  llvm::SmallVector<llvm::StringRef> lines;
  llvm::StringRef(text).split(lines, '\n');
  std::vector<std::string> moved;
  for (llvm::StringRef line : lines) {
    const auto [key, value] = line.split('=');
    const auto [before, quoted] = value.split('"');
    const auto [path, behind] = quoted.split('"');
    if (key.trim() == "model" && before.trim().empty() && !path.empty() && fs::path(path.str()).is_relative())
      moved.push_back(fmt::format("{}= \"{}\"{}", key.str(),
                                  (old / path.str()).lexically_normal().lexically_relative(now).string(),
                                  behind.str()));
    else
      moved.push_back(line.str());
  }
  return llvm::join(moved, "\n");
}

std::string withFitted(const std::string &text, const ClusterConfig &c) {
  const auto time = [](double s) { return fmt::format("\"{:.4g} s\"", s); };
  const auto band = [](double b) { return fmt::format("\"{:.4g} GB/s\"", b * 1e-9); };
  const auto plain = [](double x) { return fmt::format("{:.4g}", x); };
  struct Entry {
    const char *table;
    std::string key;
    const Fitted *f;
    std::function<std::string(double)> form;
  };
  const Entry entries[] = {{"software", "slowdown", &c.software.slowdown, plain},
                           {"software", "step_overhead", &c.software.stepOverhead, time},
                           {"network", "effective", &c.network.effective, band}};
  std::string anew = text;
  for (const Entry &e : entries) {
    if (!e.f->known)
      continue;
    const std::string interval = e.key + "_interval";
    std::vector<std::string> wanted = {fmt::format("{} = {}", e.key, e.form(e.f->value))};
    if (e.f->low < e.f->high)
      wanted.push_back(fmt::format("{} = [{}, {}]", interval, e.form(e.f->low), e.form(e.f->high)));
    anew = withKeys(anew, e.table, {e.key, interval}, wanted);
  }
  std::vector<std::string> wanted;
  if (c.software.scatter)
    wanted.push_back(fmt::format("scatter = {}", plain(*c.software.scatter)));
  return withKeys(anew, "software", {"scatter"}, wanted);
}

std::string formatShares(llvm::ArrayRef<std::pair<double, double>> shares) {
  std::string text;
  for (const auto &[rows, share] : shares)
    text += fmt::format("{}[{:.10g}, {:.4g}]", text.empty() ? "" : ", ", rows, share);
  return "[" + text + "]";
}

std::string withEfficiency(const std::string &text, const DeviceSpec &d) {
  return withKeys(
      text, "device", {"matmul", "efficiency"},
      {fmt::format("matmul = {:.4g}", d.matmul), fmt::format("efficiency = {}", formatShares(d.efficiency))});
}

std::string formatFlops(double n) { return withPrefix(n, "FLOP/s"); }
std::string formatBandwidth(double n) { return withPrefix(n, "B/s"); }
std::string formatSeconds(double s) {
  return s < 1e-3 ? fmt::format("{:.3g} us", s * 1e6)
         : s < 1  ? fmt::format("{:.3g} ms", s * 1e3)
                  : fmt::format("{:.3g} s", s);
}

}  // namespace gptc
