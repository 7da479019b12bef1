#include "frontends/check_model.h"

#include "frontends/read_settings.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <functional>

namespace gptc {

namespace {

/// Attention keeps a few rows of a head on a thread's stack.
constexpr int64_t widestHead = 1024;

/// Whether heads of `width / heads` elements can be built.
bool headsFit(const ModelConfig &m, int64_t heads, int64_t width) {
  const int64_t size = width / heads;
  const bool rotates = m.position == Position::rope && !m.rotaryDim;
  return width % heads == 0 && size <= widestHead && !(rotates && size % 2);
}

/// Remedies for a number of heads that does not fit the width: numbers of heads for this width; the nearest widths for
/// this number; and if this width allows no number, the nearest that does.
std::vector<std::string> fittingHeads(const ModelConfig &m) {
  constexpr int64_t mostHeads = 1024, widest = 1 << 16;
  std::vector<std::string> numbers, widths, help;
  for (int64_t h = 1; h <= std::min(mostHeads, m.nEmbd) && numbers.size() < 12; ++h)
    if (headsFit(m, h, m.nEmbd))
      numbers.push_back(fmt::format("{}", h));
  if (!numbers.empty())
    help.push_back(fmt::format("n_head = {} {}", fmt::join(numbers, ", "), numbers.size() > 1 ? "work" : "works"));
  auto nearest = [&](const std::function<bool(int64_t)> &fits) {
    std::vector<std::string> found;
    for (int step : {-1, 1})
      for (int64_t w = m.nEmbd + step; w >= 1 && w <= widest; w += step)
        if (fits(w)) {
          found.push_back(fmt::format("{}", w));
          break;
        }
    return found;
  };
  if (widths = nearest([&](int64_t w) { return headsFit(m, m.nHead, w); }); !widths.empty())
    help.push_back(
        fmt::format("n_embd = {} works with {} head{}", fmt::join(widths, " or "), m.nHead, m.nHead > 1 ? "s" : ""));
  if (numbers.empty()) {
    auto some = [&](int64_t w) {
      for (int64_t h = 1; h <= mostHeads; ++h)
        if (headsFit(m, h, w))
          return h;
      return int64_t(0);
    };
    for (const std::string &w : nearest([&](int64_t w) { return some(w) != 0; }))
      if (!llvm::is_contained(widths, w))
        help.push_back(fmt::format("n_embd = {} works with n_head = {}", w, some(std::stoll(w))));
  }
  return help;
}

/// Heads whose size follows from n_embd.
void checkDividedHeads(ConfigReader &r, const ModelConfig &m) {
  const char *toBlame = r.where("model.n_head").line ? "model.n_head" : "model.n_embd";
  const int64_t size = m.nEmbd / m.nHead;
  if (m.nEmbd % m.nHead)
    r.complain(toBlame, ErrorCode::ShapeMismatch, fmt::format("{} heads cannot share a width of {}", m.nHead, m.nEmbd),
               fmt::format("n_head must divide n_embd = {}{}", m.nEmbd, lineOf(r, "model.n_embd")), fittingHeads(m));
  else if (size > widestHead)
    r.complain(toBlame, ErrorCode::OutOfRange, fmt::format("heads of width {} are too wide", size),
               fmt::format("n_embd / n_head must be at most {}", widestHead), fittingHeads(m));
}

void checkRotatedHeads(ConfigReader &r, const ModelConfig &m) {
  const char *toBlame = r.where("model.n_head").line ? "model.n_head" : "model.n_embd";
  const int64_t size = m.headSize();
  if (!r.good(toBlame) || m.position != Position::rope || m.rotaryDim || size % 2 == 0)
    return;
  if (m.headDim)
    r.complain("model.head_dim", ErrorCode::ShapeMismatch,
               fmt::format("heads of {} elements cannot be rotated: position = \"rope\" turns pairs", size),
               "must be even", {fmt::format("{} and {} work", std::max<int64_t>(2, size - 1), size + 1)});
  else
    r.complain(toBlame, ErrorCode::ShapeMismatch,
               fmt::format("heads of {} elements cannot be rotated: position = \"rope\" turns pairs", size),
               fmt::format("n_embd / n_head = {} / {} must be even", m.nEmbd, m.nHead), fittingHeads(m));
}

std::string quoted(std::string_view word) { return fmt::format("\"{}\"", word); }

/// Reports keys of a model that say something about what the model does not have.
class Contradictions {
public:
  Contradictions(ConfigReader &r, const ModelConfig &m) : r(r), m(m) {}

  void check() {
    rotations();
    attention();
    layers();
  }

private:
  ConfigReader &r;
  const ModelConfig &m;
  const ModelConfig defaults;

  /// `is`: what the other key says. `works`: a value of it that goes together with `key`.
  void contradicts(const char *key, const char *what, const std::string &other, const std::string &is,
                   const std::string &works) {
    const std::string otherKey = "model." + other;
    if (!r.good(key) || !r.good(otherKey.c_str()))
      return;
    r.complain(key, ErrorCode::Contradiction, fmt::format("{} {}", key, what),
               fmt::format("contradicts {} = {}{}", other, is,
                           r.where(otherKey).line ? lineOf(r, otherKey.c_str()) : ", the default"),
               {works.empty() ? std::string("leave one of the two out")
                              : fmt::format("leave it out, or write {} = {}", other, works)});
  }

  void rotations() {
    const std::string position = quoted(nameOf(m.position)), scaling = quoted(nameOf(m.ropeScaling));
    const std::pair<const char *, bool> rotating[] = {{"model.rope_theta", m.ropeTheta != defaults.ropeTheta},
                                                      {"model.rotary_dim", m.rotated() != m.headSize()},
                                                      {"model.rope_scaling", m.ropeScaling != RopeScaling::none},
                                                      {"model.layers_without_rope", !m.layersWithoutRope.empty()},
                                                      {"model.window_rope_theta", m.windowRopeTheta != 0}};
    for (const auto &[key, written] : rotating)
      if (written && m.position != Position::rope)
        contradicts(key, "is about rotations", "position", position, quoted("rope"));

    const bool llama3 = m.ropeScaling == RopeScaling::llama3, yarn = m.ropeScaling == RopeScaling::yarn;
    const struct {
      const char *key;
      bool written, meant;
      const char *what, *works;
    } scalings[] = {
        {"model.rope_factor", m.ropeFactor != 1, m.ropeScaling != RopeScaling::none, "is about scaled rotations",
         "linear"},
        {"model.rope_original_block_size", m.ropeOriginal != 0, llama3 || yarn, "is about the scalings llama3 and yarn",
         "llama3"},
        {"model.rope_low_freq_factor", m.ropeLow != defaults.ropeLow, llama3, "is about the scaling llama3", "llama3"},
        {"model.rope_high_freq_factor", m.ropeHigh != defaults.ropeHigh, llama3, "is about the scaling llama3",
         "llama3"},
        {"model.rope_beta_fast", m.ropeBetaFast != defaults.ropeBetaFast, yarn, "is about the scaling yarn", "yarn"},
        {"model.rope_beta_slow", m.ropeBetaSlow != defaults.ropeBetaSlow, yarn, "is about the scaling yarn", "yarn"},
        {"model.rope_truncate", !m.ropeTruncate, yarn, "is about the scaling yarn", "yarn"},
        {"model.rope_attention_factor", m.ropeMagnitude != 0, yarn, "is about the scaling yarn", "yarn"}};
    for (const auto &s : scalings)
      if (s.written && !s.meant)
        contradicts(s.key, s.what, "rope_scaling", scaling, quoted(s.works));
    if ((llama3 || yarn) && !m.ropeOriginal && r.good("model.rope_original_block_size"))
      r.missing("model.rope_original_block_size",
                fmt::format("write the tokens of the contexts of training: rope_scaling = {} needs them", scaling));
    if (llama3 && m.ropeHigh <= m.ropeLow)
      inOrder("model.rope_high_freq_factor", m.ropeHigh, "rope_low_freq_factor", m.ropeLow);
    if (yarn && m.ropeBetaFast <= m.ropeBetaSlow)
      inOrder("model.rope_beta_fast", m.ropeBetaFast, "rope_beta_slow", m.ropeBetaSlow);
    listOfLayers("model.layers_without_rope", m.layersWithoutRope);
  }

  void attention() {
    for (const auto &[key, written] : {std::pair("model.layers_without_window", !m.layersWithoutWindow.empty()),
                                       std::pair("model.window_rope_theta", m.windowRopeTheta != 0)})
      if (written && !m.window)
        contradicts(key, "is about a window", "window", "0", "4096");
    if (m.windowRopeTheta > 0 && m.windowRopeTheta <= 1 && r.good("model.window_rope_theta"))
      r.complain("model.window_rope_theta", ErrorCode::OutOfRange,
                 fmt::format("model.window_rope_theta = {} is out of range", m.windowRopeTheta),
                 "must be 0, or above 1 as rope_theta", {"0 takes rope_theta in all layers"});
    listOfLayers("model.layers_without_window", m.layersWithoutWindow);
  }

  void layers() {
    const bool rms = m.norm == Norm::rmsnorm;
    if (m.normBias == true && rms)
      contradicts("model.norm_bias", "= true is about layer norms", "norm", quoted("rmsnorm"), quoted("layernorm"));
    if (m.normPlusOne && !rms)
      contradicts("model.norm_plus_one", "is about RMS norms", "norm", quoted("layernorm"), quoted("rmsnorm"));
    if (m.sharedNorm && !m.parallelResidual)
      contradicts("model.shared_norm", "is about blocks side by side", "parallel_residual", "false", "true");
    if (m.parallelResidual && m.normPosition != NormPosition::pre)
      contradicts("model.norm_position", "must be \"pre\" with blocks side by side", "parallel_residual", "true",
                  "false");
    if (!m.firstNorm && m.normPosition != NormPosition::pre && m.normPosition != NormPosition::both)
      contradicts("model.first_norm", "is about norms before blocks", "norm_position", quoted(nameOf(m.normPosition)),
                  quoted("pre"));
    if (!m.firstNorm && m.sharedNorm)
      contradicts("model.first_norm", "= false leaves no norm to share", "shared_norm", "true", "false");
  }

  void inOrder(const char *key, double value, const char *lower, double least) {
    if (r.good(key) && r.good(fmt::format("model.{}", lower).c_str()))
      r.complain(key, ErrorCode::Contradiction, fmt::format("{} = {} is not above {} = {}", key, value, lower, least),
                 "", {fmt::format("{} = {} works", key, 2 * least)});
  }

  void listOfLayers(const char *key, const std::vector<int64_t> &layers) {
    if (!layers.empty() && m.nLayer && layers.back() >= m.nLayer && r.good(key) && r.good("model.n_layer"))
      r.complain(key, ErrorCode::OutOfRange, fmt::format("{} holds {}", key, layers.back()),
                 fmt::format("n_layer = {}{}: layers are 0 to {}", m.nLayer, lineOf(r, "model.n_layer"), m.nLayer - 1));
  }
};

}  // namespace

std::string divisors(int64_t n, int64_t most) {
  std::vector<std::string> found;
  for (int64_t d = 1; d <= n && found.size() < 12; ++d)
    if (n % d == 0 && d <= most)
      found.push_back(fmt::format("{}", d));
  return fmt::format("{}", fmt::join(found, ", "));
}

void checkHeads(ConfigReader &r, ModelConfig &m) {
  const bool known = m.nHead && m.nEmbd && r.good("model.n_head") && r.good("model.n_embd") && r.good("model.head_dim");
  if (known && !m.headDim)
    checkDividedHeads(r, m);
  if (!m.nKvHead)
    m.nKvHead = m.nHead;
  else if (m.nHead && r.good("model.n_kv_head") && r.good("model.n_head") && m.nHead % m.nKvHead)
    r.complain("model.n_kv_head", ErrorCode::ShapeMismatch,
               fmt::format("{} heads cannot share {} key and value heads", m.nHead, m.nKvHead),
               fmt::format("n_kv_head must divide n_head = {}{}", m.nHead, lineOf(r, "model.n_head")),
               {fmt::format("{} work", divisors(m.nHead, m.nHead))});
  if (known && r.good("model.rotary_dim"))
    checkRotatedHeads(r, m);
  m.headDim = m.headSize();
  if (known && m.rotaryDim && r.good("model.rotary_dim") && (m.rotaryDim % 2 || m.rotaryDim > m.headDim)) {
    const int64_t most = std::max<int64_t>(2, m.headDim / 2 * 2);
    r.complain("model.rotary_dim", ErrorCode::ShapeMismatch,
               fmt::format("{} elements of a head of {} cannot be rotated in pairs", m.rotaryDim, m.headDim),
               "must be even, and no more than the head has",
               {fmt::format("{} works", std::min(most, (m.rotaryDim + 1) / 2 * 2))});
  }
  m.rotaryDim = m.rotated();
}

void checkArchitecture(ConfigReader &r, ModelConfig &m) {
  Contradictions(r, m).check();
  m.qkvBias = m.biased(m.qkvBias);
  m.attentionBias = m.biased(m.attentionBias);
  m.mlpBias = m.biased(m.mlpBias);
  m.normBias = m.normBiased();
}

}  // namespace gptc
