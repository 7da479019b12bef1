#include "frontends/hf/write.h"

#include "frontends/hf/read.h"

#include "llvm/ADT/STLExtras.h"

#include <cmath>

namespace gptc::hf {

namespace {

using Ordered = nlohmann::ordered_json;

/// The part of a head from which transformers gets back `rotated` elements.
double partOf(int64_t rotated, int64_t head) {
  const double part = double(rotated) / double(head);
  return int64_t(double(head) * part) == rotated ? part : std::nextafter(part, 2.0);
}

void writeRotations(const Rotations &r, const ModelValues &v, Ordered &config) {
  const int64_t head = v.at("head_dim"), rotated = v.at("rotary_dim");
  const std::string kind = v.at("rope_scaling");
  Ordered scaling = {{"rope_type", kind == "none" ? "default" : kind}};
  auto add = [&](const char *theirs, const char *ours) { scaling[theirs] = v.at(ours); };
  if (kind != "none")
    add("factor", "rope_factor");
  if (kind == "llama3" || kind == "yarn")
    add("original_max_position_embeddings", "rope_original_block_size");
  if (kind == "llama3") {
    add("low_freq_factor", "rope_low_freq_factor");
    add("high_freq_factor", "rope_high_freq_factor");
  }
  if (kind == "yarn") {
    add("beta_fast", "rope_beta_fast");
    add("beta_slow", "rope_beta_slow");
    add("truncate", "rope_truncate");
    if (v.at("rope_attention_factor") != 0)
      add("attention_factor", "rope_attention_factor");
  }
  config["rope_theta"] = v.at("rope_theta");
  config["rope_scaling"] = kind == "none" ? Ordered() : scaling;
  if (r.thetaToo)
    config[r.thetaToo] = v.at("rope_theta");
  scaling["rope_theta"] = v.at("rope_theta");
  if (r.part != 1 && head > 0) {
    const double part = partOf(rotated, head);
    config["partial_rotary_factor"] = part;
    if (r.partToo)
      config[r.partToo] = part;
    scaling["partial_rotary_factor"] = part;
  }
  config["rope_parameters"] = scaling;
}

/// Both bases, in the spelling of either version.
void writeRotationsByType(const ModelValues &v, Ordered &config) {
  const json &theta = v.at("rope_theta"), &own = v.at("window_rope_theta"), &window = own == 0 ? theta : own;
  config["global_rope_theta"] = theta;
  config["local_rope_theta"] = window;
  config["rope_parameters"] = {{"full_attention", {{"rope_type", "default"}, {"rope_theta", theta}}},
                               {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", window}}}};
}

/// Only every so many-th layer, from layer 0 on, is without a window: transformers 4 knows no other lists.
void writeLocalWindows(const ModelValues &v, Ordered &config) {
  const int64_t window = v.at("window"), layers = v.at("n_layer");
  const auto full = v.at("layers_without_window").get<std::vector<int64_t>>();
  auto follows = [&](int64_t every) {
    for (int64_t i = 0; i < layers; ++i)
      if ((i % every == 0) != llvm::is_contained(full, i))
        return false;
    return true;
  };
  int64_t every = window ? 2 : 1;
  while (window && every < layers && !follows(every))
    ++every;
  Ordered types = Ordered::array();
  for (int64_t i = 0; i < layers; ++i)
    types.push_back(i % every ? "sliding_attention" : "full_attention");
  config["layer_types"] = types;
  config["global_attn_every_n_layers"] = every;
  config["local_attention"] = window ? 2 * (window - 1) : 128;
}

void writeWindows(Windows kind, const ModelValues &v, Ordered &config) {
  if (kind == Windows::none)
    return;
  if (kind == Windows::local)
    return writeLocalWindows(v, config);
  const int64_t window = v.at("window"), layers = v.at("n_layer");
  const auto full = v.at("layers_without_window").get<std::vector<int64_t>>();
  config["sliding_window"] = window ? Ordered(window) : Ordered();
  if (kind == Windows::all)
    return;
  Ordered types = Ordered::array();
  int64_t first = 0;  // layer with a window
  for (int64_t i = 0; i < layers; ++i) {
    const bool sees = !window || llvm::is_contained(full, i);
    types.push_back(sees ? "full_attention" : "sliding_attention");
    first += sees && first == i;
  }
  config["layer_types"] = types;
  if (kind == Windows::even) {
    // transformers makes the mask of a window even for a model that uses none.
    config["sliding_window"] = window ? window : 4096;
    return;
  }
  config["use_sliding_window"] = window != 0;
  if (kind == Windows::late && (!window || int64_t(full.size()) == first))
    config["max_window_layers"] = first;
}

}  // namespace

nlohmann::ordered_json write(const Family &family, const ModelValues &v, double dropout) {
  Ordered config = {{"architectures", {family.architecture}}, {"model_type", family.name}};
  for (const Row &r : family.rows) {
    const json &ours = v.at(r.ours[0]);
    json here = ours;
    // The scale by default is one of a head's size.
    if (r.ours[0] == llvm::StringRef("attention_scale") && ours == 0)
      here = 1 / std::sqrt(v.at("head_dim").get<double>());
    const json theirs = r.translation ? r.translation->write(here) : here;
    config[r.theirs] = theirs;
  }
  if (*family.positions)
    config[family.positions] = v.at("block_size");
  if (family.rotations && family.rotations->windowTheta != 0)
    writeRotationsByType(v, config);
  else if (family.rotations)
    writeRotations(*family.rotations, v, config);
  writeWindows(family.windows, v, config);
  if (family.windows == Windows::unrotated) {
    const auto without = v.at("layers_without_rope").get<std::vector<int64_t>>();
    Ordered list = Ordered::array();
    for (int64_t i = 0; i < v.at("n_layer").get<int64_t>(); ++i)
      list.push_back(llvm::is_contained(without, i) ? 0 : 1);
    config["no_rope_layers"] = list;
  }
  for (const Only &o : family.only)
    if (!o.value.is_null())
      config[o.theirs] = o.value;
  for (const char *rate : family.dropouts)
    config[rate] = dropout;
  return config;
}

std::vector<std::string> differingKeys(const Family &family, const ModelValues &here) {
  const json config = json::parse(write(family, here, 0).dump());
  Reading back = read("config.json", config, family, here.at("block_size"));
  if (!*family.positions)
    back.said["block_size"].value = here.at("block_size");
  const ModelValues there = back.values();
  std::vector<std::string> differing;
  for (const std::string &key : modelKeys())
    if (!back.said.count(key) || !isSame(there.at(key), here.at(key)))
      differing.push_back(key);
  return differing;
}

const Family *familyOf(const ModelConfig &model) {
  const ModelValues values = valuesOf(model);
  for (const Family &f : families())
    if (differingKeys(f, values).empty())
      return &f;
  return nullptr;
}

}  // namespace gptc::hf
