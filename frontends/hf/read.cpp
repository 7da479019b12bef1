// 1. Rows, in their order: the value of the key or of one of its other names, else what an absent key stands for.
// 2. What all models of the family have; positions; rotations and windows, which have several spellings.
// 3. Keys of which one value is built, and keys that cannot change a logit. Any other key is unknown.
// 4. Keys of [model] of which nothing has been said have their plain values.
#include "frontends/hf/read.h"

#include "support/json_problem.h"
#include "support/words.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"

#include <cmath>
#include <set>

namespace gptc::hf {

ModelValues Reading::values() const {
  ModelValues v;
  for (const auto &[key, s] : said)
    v[key] = s.value;
  settle(v);
  return v;
}

namespace {

class Reader {
public:
  Reader(const std::string &file, const json &config, const Family &family, int64_t block)
      : file(file), config(config), family(family), block(block) {}

  Reading run() {
    for (const Row &r : family.rows)
      row(r);
    for (const Fact &f : family.facts)
      fact(f);
    positions();
    if (family.rotations && family.rotations->windowTheta != 0)
      rotationsByType();
    else if (family.rotations)
      rotations();
    if (family.windows == Windows::local)
      localWindows();
    else
      windows();
    for (const Only &o : family.only)
      only(o);
    for (const Only &o : onlyInAll())
      only(o);
    code();
    unknownKeys();
    plain();
    return std::move(out);
  }

private:
  // ---- messages -----------------------------------------------------------------------------------------------------

  void add(ErrorCode code, const std::string &what, std::string help) {
    out.problems.push_back({code, fmt::format("{}: {}", file, what), {}, "", {std::move(help)}});
  }
  /// Reports that config.json says `what`, of which only `built` is built.
  void notBuilt(const std::string &what, const std::string &built) {
    add(ErrorCode::NotBuiltYet, fmt::format("{}, but only {} is built", what, built),
        "take weights of another model: with these, gptc would compute something else than they were trained for");
  }
  void contradict(const std::string &one, const std::string &other) {
    add(ErrorCode::Contradiction, fmt::format("{}, but {}", one, other),
        "copy the file again from where the weights are from, or correct the key that is wrong");
  }
  void missing(const std::string &what, llvm::StringRef key) {
    add(ErrorCode::MissingKey, fmt::format("{} has no {}", what, key.str()),
        "copy the file again from where the weights are from");
  }
  void wrongType(const std::string &what, const char *wanted) {
    add(ErrorCode::WrongType, fmt::format("{} must be {}", what, wanted),
        "copy the file again from where the weights are from, or correct the value");
  }
  void unknown(const std::string &key, const json &value) {
    add(ErrorCode::UnknownKey, fmt::format("unknown key {} = {}", key, shown(value)),
        "it may change what the model computes, and nothing in gptc knows it");
  }

  // ---- looking up ---------------------------------------------------------------------------------------------------

  bool has(llvm::StringRef key) {
    known.insert(key.str());
    const auto it = config.find(key.str());
    return it != config.end() && !it->is_null();
  }
  bool isNull(llvm::StringRef key) const {
    const auto it = config.find(key.str());
    return it != config.end() && it->is_null();
  }
  const json &at(llvm::StringRef key) const { return config.at(key.str()); }
  static std::string equation(const std::string &key, const json &value) {
    return fmt::format("{} = {}", key, shown(value));
  }
  /// What an absent key stands for, in words.
  std::string absent(llvm::StringRef key, const json &value) const {
    return isNull(key) && value.is_null()
               ? equation(key.str(), value)
               : fmt::format("no {}, which in model_type = \"{}\" means {}", key.str(), family.name, shown(value));
  }
  void say(llvm::StringRef ours, json value, std::string what, std::function<json(const ModelValues &)> derived = {}) {
    values[ours.str()] = value;
    out.said[ours.str()] = {std::move(value), std::move(what), std::move(derived)};
  }
  int64_t integer(const char *ours) const {
    const auto it = values.find(ours);
    return it != values.end() && it->second.is_number_integer() ? it->second.get<int64_t>() : 0;
  }

  // ---- rows and facts -----------------------------------------------------------------------------------------------

  void row(const Row &r) {
    std::string key = r.theirs;
    const json *value = has(key) ? &at(key) : nullptr;
    for (const char *other : r.also) {
      if (!has(other))
        continue;
      if (value && *value != at(other))
        return contradict(equation(key, *value), equation(other, at(other)));
      if (!value)
        key = other;
      value = &at(other);
    }
    if (!value && r.derived && (r.absent.is_null() || isNull(r.theirs))) {
      const json here = r.derived(values);
      for (const char *ours : r.ours)
        if (!here.is_null())  // else what it follows from is wrong itself
          say(ours, here,
              isNull(r.theirs) && !r.absent.is_null() ? equation(r.theirs, nullptr) : absent(r.theirs, here),
              r.derived);
      return;
    }
    const json &theirs = value ? *value : r.absent;
    const std::string what = value ? equation(key, theirs) : absent(key, theirs);
    const json here = r.translation && r.translation->read ? r.translation->read(theirs) : theirs;
    for (const char *ours : r.ours)
      if (here.is_null())
        notBuilt(what, llvm::StringRef(ours) == "activation" ? activations(*r.translation) : "a number above 0");
      else
        say(ours, here, what);
  }

  /// The activations that gptc has of this family, as config.json names them.
  static std::string activations(const Translation &t) {
    std::vector<std::string> names;
    for (const std::string &word : allWords<Activation>())
      if (const json theirs = t.write(word); theirs.is_string())
        names.push_back(theirs);
    return quotedList(names, "or");
  }

  void fact(const Fact &f) {
    const json value = f.derived ? f.derived(values) : f.value;
    if (!value.is_null())
      say(f.ours, value, ofFamily(f.ours, value), f.derived);
  }
  std::string ofFamily(const std::string &ours, const json &value) const {
    return fmt::format("model_type = \"{}\" has {} = {}", family.name, ours, shown(value));
  }

  void only(const Only &o) {
    if (!has(o.theirs) || at(o.theirs) == o.value)
      return;
    std::string what = equation(o.theirs, at(o.theirs));
    if (o.ifAbove1) {
      const json one = 1, &other = has(o.ifAbove1) ? at(o.ifAbove1) : one;
      if (other.is_number() && other <= 1)
        return;
      what += " with " + equation(o.ifAbove1, other);
    }
    notBuilt(what, o.value.is_null() ? "a model without it" : shown(o.value));
  }

  void positions() {
    const std::string key = family.positions;
    const bool written = !key.empty() && has(key);
    json n = written ? at(key) : json(family.defaultPositions);
    const std::string what = written ? equation(key, n) : absent(key.empty() ? "number of positions" : key, n);
    if (n.is_number_integer()) {
      out.context = n.get<int64_t>();
      if (!family.tableOfPositions && n > kMostBlockSize)
        n = kMostBlockSize;
    }
    say("block_size", n, what);
    if (!block && n.is_number_integer())
      block = n;
  }

  /// Keys that only plain values of [model] hold.
  void plain() {
    ModelValues all = values;
    addPlainValues(all);
    if (integer("n_head") > 0 && integer("n_embd") > 0 && !all.count("head_dim"))
      add(ErrorCode::ShapeMismatch,
          fmt::format("{} and {}: heads cannot share this width", out.said["n_head"].what, out.said["n_embd"].what),
          "copy the file again from where the weights are from, or correct the value that is wrong");
    for (const auto &[key, value] : all)
      if (!values.count(key)) {
        std::function<json(const ModelValues &)> derived;
        if (key == "n_kv_head" || key == "head_dim" || key == "rotary_dim")
          derived = [key = key](ModelValues v) {
            v.erase(key);
            addPlainValues(v);
            return v.count(key) ? v.at(key) : json();
          };
        say(key, value, ofFamily(key, value), derived);
      }
  }

  // ---- rotations ----------------------------------------------------------------------------------------------------

  struct Quantity {
    json value;
    std::string what;
  };
  using Quantities = std::map<std::string, Quantity>;

  void quantity(Quantities &all, const std::string &name, const json &value, const std::string &key) {
    if (value.is_null())
      return;
    const auto [it, isNew] = all.try_emplace(name, Quantity{value, equation(key, value)});
    if (!isNew && it->second.value != value)
      contradict(it->second.what, equation(key, value));
  }

  /// One object with parameters of rotations. `where`: its key.
  void rotationObject(Quantities &all, const std::string &where, const json &object) {
    if (!object.is_object())
      return wrongType(equation(where, object), "an object or null");
    const std::pair<const char *, const char *> names[] = {
        {"type", "type"},           {"rope_type", "type"},
        {"rope_theta", "theta"},    {"partial_rotary_factor", "part"},
        {"factor", "factor"},       {"original_max_position_embeddings", "original"},
        {"low_freq_factor", "low"}, {"high_freq_factor", "high"},
        {"beta_fast", "fast"},      {"beta_slow", "slow"},
        {"truncate", "truncate"},   {"attention_factor", "magnitude"},
        {"mscale", "mscale"},       {"mscale_all_dim", "mscale_all_dim"}};
    for (const auto &[key, value] : object.items()) {
      const std::string full = fmt::format("{}.{}", where, key);
      // One object for each type of layers, as Gemma's files may have them.
      if (key == "full_attention" || key == "sliding_attention") {
        if (!value.is_null())
          rotationObject(all, full, value);
        continue;
      }
      const auto *name = llvm::find_if(names, [&key = key](const auto &n) { return key == n.first; });
      if (name == std::end(names))
        unknown(full, value);
      else
        quantity(all, name->second, value, full);
    }
  }

  Quantities rotationQuantities() {
    Quantities all;
    const Rotations &r = *family.rotations;
    for (const char *key : {"rope_theta", r.thetaToo})
      if (key && has(key))
        quantity(all, "theta", at(key), key);
    for (const char *key : {"partial_rotary_factor", r.partToo})
      if (key && has(key))
        quantity(all, "part", at(key), key);
    for (const char *key : {"rope_scaling", "rope_parameters"})
      if (has(key))
        rotationObject(all, key, at(key));
    requireTypes(all);
    return all;
  }

  /// Reports values of wrong types and removes them.
  void requireTypes(Quantities &all) {
    for (auto it = all.begin(); it != all.end();) {
      const json &value = it->second.value;
      const char *wanted = it->first == "type"       ? (value.is_string() ? nullptr : "a string")
                           : it->first == "truncate" ? (value.is_boolean() ? nullptr : "true or false")
                                                     : (value.is_number() ? nullptr : "a number");
      if (wanted)
        wrongType(it->second.what, wanted);
      it = wanted ? all.erase(it) : std::next(it);
    }
  }

  /// What rotates of a head, as transformers rounds it.
  static json rotated(const ModelValues &v, double part) {
    const auto it = v.find("head_dim");
    if (it == v.end() || !it->second.is_number_integer() || !(part > 0 && part <= 1))
      return {};
    return int64_t(double(it->second.get<int64_t>()) * part);
  }

  void rotations() {
    const Quantities q = rotationQuantities();
    const Rotations &r = *family.rotations;
    auto find = [&](const char *name) {
      const auto it = q.find(name);
      return it == q.end() ? nullptr : &it->second;
    };
    if (const Quantity *theta = find("theta"))
      say("rope_theta", theta->value, theta->what);
    else
      say("rope_theta", r.theta, absent("rope_theta", r.theta));

    ModelValues all = values;
    addPlainValues(all);
    const Quantity *partial = find("part");
    const double part = partial ? partial->value.get<double>() : r.part;
    const std::string what = partial ? partial->what : absent("partial_rotary_factor", r.part);
    if (r.part == 1 && part != 1)
      notBuilt(what, "1.0");
    else if (const json n = rotated(all, part); !n.is_null())
      say("rotary_dim", n, what, [part](const ModelValues &v) { return rotated(v, part); });
    else if (!(part > 0 && part <= 1))
      notBuilt(what, "a part above 0, at most 1,");
    scaling(q);
    if (family.windows == Windows::unrotated)
      unrotatedLayers();
  }

  /// Layers with a window, and the others, have a base each.
  void rotationsByType() {
    const json none = json::object(), &objects = has("rope_parameters") ? at("rope_parameters") : none;
    if (!objects.is_object())
      return wrongType(equation("rope_parameters", objects), "an object or null");
    for (const auto &[key, value] : objects.items())
      if (key != "full_attention" && key != "sliding_attention")
        unknown("rope_parameters." + key, value);
    Quantities ofAll;
    if (has("rope_scaling"))
      rotationObject(ofAll, "rope_scaling", at("rope_scaling"));
    rotationsOf("full_attention", ofAll, objects, "global_rope_theta", "rope_theta", family.rotations->theta);
    rotationsOf("sliding_attention", ofAll, objects, "local_rope_theta", "window_rope_theta",
                family.rotations->windowTheta);
  }

  void rotationsOf(const std::string &type, Quantities q, const json &objects, const char *key, const char *ours,
                   double usual) {
    if (has(key))
      quantity(q, "theta", at(key), key);
    if (const auto own = objects.find(type); own != objects.end() && !own->is_null())
      rotationObject(q, "rope_parameters." + type, *own);
    requireTypes(q);
    if (const auto kind = q.find("type"); kind != q.end() && kind->second.value != "default")
      notBuilt(kind->second.what, "rope_type = \"default\"");
    if (const auto part = q.find("part"); part != q.end() && part->second.value != 1)
      notBuilt(part->second.what, "1.0");
    if (const auto theta = q.find("theta"); theta != q.end() && theta->second.value <= 1)
      notBuilt(theta->second.what, "a base above 1");
    else if (theta != q.end())
      say(ours, theta->second.value, theta->second.what);
    else if (isNull(key) && values.count("rope_theta"))  // transformers 4 takes the other one then
      say(ours, json(values.at("rope_theta")), equation(key, nullptr));
    else
      say(ours, usual, absent(key, usual));
  }

  void scaling(const Quantities &q) {
    auto find = [&](const char *name) {
      const auto it = q.find(name);
      return it == q.end() ? nullptr : &it->second;
    };
    const Quantity *type = find("type");
    if (!type || type->value == "default")
      return say("rope_scaling", "none", type ? type->what : absent("rope_scaling", "default"));
    const std::string kind = type->value;
    if (kind != "linear" && kind != "llama3" && kind != "yarn")
      return notBuilt(type->what, "rope_type = \"default\", \"linear\", \"llama3\" or \"yarn\"");
    say("rope_scaling", kind, type->what);
    auto take = [&](const char *name, const char *ours, const char *theirs, bool needed) {
      if (const Quantity *value = find(name))
        say(ours, value->value, value->what);
      else if (needed)
        missing(type->what, theirs);
    };
    take("factor", "rope_factor", "factor", true);
    if (kind == "linear")
      return;
    take("original", "rope_original_block_size", "original_max_position_embeddings", true);
    take("low", "rope_low_freq_factor", "low_freq_factor", kind == "llama3");
    take("high", "rope_high_freq_factor", "high_freq_factor", kind == "llama3");
    // transformers takes its own value where one of these is 0.
    for (const auto &[name, ours] : {std::pair("fast", "rope_beta_fast"), std::pair("slow", "rope_beta_slow")})
      if (const Quantity *beta = find(name); beta && beta->value != 0)
        say(ours, beta->value, beta->what);
    take("truncate", "rope_truncate", "truncate", false);
    take("magnitude", "rope_attention_factor", "attention_factor", false);
    const Quantity *m = find("mscale"), *all = find("mscale_all_dim"), *factor = find("factor");
    if (kind == "yarn" && !find("magnitude") && m && all && factor && m->value != 0 && all->value != 0) {
      auto magnitude = [&](const Quantity *scale) {
        const double f = factor->value;
        return f <= 1 ? 1.0 : 0.1 * scale->value.get<double>() * std::log(f) + 1;
      };
      say("rope_attention_factor", magnitude(m) / magnitude(all), fmt::format("{}, {}", m->what, all->what));
    }
  }

  /// no_rope_layers has 0 for a layer that does not rotate; without it, that is the last of each
  /// no_rope_layer_interval.
  void unrotatedLayers() {
    const int64_t layers = integer("n_layer");
    const bool listed = has("no_rope_layers"), spaced = has("no_rope_layer_interval");
    std::vector<int64_t> without;
    if (!listed) {
      const json every = spaced ? at("no_rope_layer_interval") : json(4);
      if (!every.is_number_integer() || every < 1)
        return wrongType(equation("no_rope_layer_interval", every), "an integer of at least 1");
      auto ofInterval = [n = every.get<int64_t>()](const ModelValues &v) {
        std::vector<int64_t> all;
        const auto it = v.find("n_layer");
        const int64_t count = it != v.end() && it->second.is_number_integer() ? it->second.get<int64_t>() : 0;
        for (int64_t i = n - 1; i < std::min<int64_t>(count, 1 << 16); i += n)
          all.push_back(i);
        return json(all);
      };
      return say("layers_without_rope", ofInterval(values),
                 spaced ? equation("no_rope_layer_interval", every) : absent("no_rope_layer_interval", every),
                 ofInterval);
    }
    const json &list = at("no_rope_layers");
    if (!list.is_array() || int64_t(list.size()) < layers ||
        !llvm::all_of(list, [](const json &x) { return x == 0 || x == 1; }))
      return wrongType(equation("no_rope_layers", list), "a list of 0 or 1 for each layer");
    for (int64_t i = 0; i < layers; ++i)
      if (list[i] == 0)
        without.push_back(i);
    say("layers_without_rope", without, equation("no_rope_layers", list));
  }

  // ---- windows ------------------------------------------------------------------------------------------------------

  /// The window, null for none, with its words.
  Quantity windowSaid(const json &byDefault, bool usedByDefault, bool canBeUnused) {
    const json n = config.contains("sliding_window") ? at("sliding_window") : byDefault;
    std::string what = config.contains("sliding_window") ? equation("sliding_window", n) : absent("sliding_window", n);
    if (!canBeUnused)
      return {n, what};
    const json used = has("use_sliding_window") ? at("use_sliding_window") : json(usedByDefault);
    if (used == true)
      return {n, what};
    if (used != false)
      wrongType(equation("use_sliding_window", used), "true or false");
    return {nullptr,
            has("use_sliding_window") ? equation("use_sliding_window", used) : absent("use_sliding_window", used)};
  }

  /// The layers that see everything although there is a window, if layer_types does not list them.
  std::function<json(const ModelValues &)> usualLayers() {
    const json from = has("max_window_layers") ? at("max_window_layers") : json(28);
    if (family.windows == Windows::late && (!from.is_number_integer() || from < 0)) {
      wrongType(equation("max_window_layers", from), "an integer of at least 0");
      return {};
    }
    const int64_t first = family.windows == Windows::late ? from.get<int64_t>() : 0;
    return [kind = family.windows, first](const ModelValues &v) {
      const auto it = v.find("n_layer"), rope = v.find("layers_without_rope");
      std::vector<int64_t> full, unrotated;
      if (rope != v.end() && rope->second.is_array())
        unrotated = rope->second.get<std::vector<int64_t>>();
      const int64_t layers = it != v.end() && it->second.is_number_integer() ? it->second.get<int64_t>() : 0;
      for (int64_t i = 0; i < std::min<int64_t>(layers, 1 << 16); ++i)
        if ((kind == Windows::late && i < first) || (kind == Windows::even && i % 2) ||
            (kind == Windows::unrotated && !llvm::is_contained(unrotated, i)))
          full.push_back(i);
      return json(full);
    };
  }

  void windows() {
    for (const char *key : {"sliding_window", "use_sliding_window", "max_window_layers", "layer_types"})
      known.insert(key);
    const bool none = family.windows == Windows::none,
               always = family.windows == Windows::all || family.windows == Windows::even;
    const Quantity window =
        windowSaid(none || family.windows == Windows::unrotated ? json() : json(4096), none, !always);
    const bool used = !window.value.is_null();
    if (used && (!window.value.is_number_integer() || window.value < 1))
      return wrongType(window.what, "an integer of at least 1, or null");
    const json listed = layerTypes(used);
    if (none) {
      if (used && window.value < block)
        add(ErrorCode::NotBuiltYet,
            fmt::format("{}, but model_type = \"{}\" attends to all of model.block_size = {}", window.what, family.name,
                        block),
            fmt::format("block_size = {} works, or less", shown(window.value)));
      return;
    }
    say("window", used ? window.value : json(0), window.what);
    if (!used)
      return say("layers_without_window", json::array(), window.what);
    const auto usual = usualLayers();
    if (!usual)
      return;
    const bool all = family.windows == Windows::all;
    if (listed.is_null()) {
      const bool said = all || (family.windows == Windows::late && has("max_window_layers"));
      return say("layers_without_window", usual(values), said ? window.what : absent("layer_types", usual(values)),
                 usual);
    }
    // transformers takes layer_types where both stand, and writes max_window_layers = 28 beside any list.
    const std::string what = equation("layer_types", at("layer_types"));
    if (all && listed != usual(values))
      return contradict(what, fmt::format("model_type = \"{}\" has one kind of layers", family.name));
    say("layers_without_window", listed, what);
  }

  void localWindows() {
    const json tokens = has("local_attention") ? at("local_attention") : json(128);
    const std::string what =
        has("local_attention") ? equation("local_attention", tokens) : absent("local_attention", tokens);
    const bool spaced = has("global_attn_every_n_layers");
    const json every = spaced ? at("global_attn_every_n_layers") : json(3);
    if (!tokens.is_number_integer() || tokens < 2)
      return wrongType(what, "an integer of at least 2");
    if (!every.is_number_integer() || every < 1)
      return wrongType(equation("global_attn_every_n_layers", every), "an integer of at least 1");
    say("window", tokens.get<int64_t>() / 2 + 1, what);  // the token itself is one
    auto usual = [n = every.get<int64_t>()](const ModelValues &v) {
      const auto it = v.find("n_layer");
      const int64_t layers = it != v.end() && it->second.is_number_integer() ? it->second.get<int64_t>() : 0;
      std::vector<int64_t> full;
      for (int64_t i = 0; i < std::min<int64_t>(layers, 1 << 16) && n > 0; i += n)
        full.push_back(i);
      return json(full);
    };
    // transformers takes layer_types where both stand.
    if (const json listed = layerTypes(true); !listed.is_null())
      return say("layers_without_window", listed, equation("layer_types", at("layer_types")));
    say("layers_without_window", usual(values),
        spaced ? equation("global_attn_every_n_layers", every) : absent("global_attn_every_n_layers", every), usual);
  }

  /// layer_types as the layers of full attention; null if it is absent or wrong.
  json layerTypes(bool window) {
    if (!has("layer_types"))
      return nullptr;
    const json &types = at("layer_types");
    const int64_t layers = integer("n_layer");
    if (!types.is_array() || (layers > 0 && int64_t(types.size()) != layers)) {
      wrongType(equation("layer_types", types), "a list with the type of each layer");
      return nullptr;
    }
    std::vector<int64_t> full;
    for (size_t i = 0; i < types.size(); ++i)
      if (types[i] == "full_attention") {
        full.push_back(int64_t(i));
      } else if (types[i] != "sliding_attention") {
        notBuilt(equation("layer_types", types), "\"full_attention\" or \"sliding_attention\"");
        return nullptr;
      } else if (!window) {
        contradict(equation("layer_types", types), "no sliding_window is in use");
        return nullptr;
      }
    return full;
  }

  // ---- the rest -----------------------------------------------------------------------------------------------------

  /// A description that asks for code, or for other weights than those of the model.
  void code() {
    for (const char *key : {"auto_map", "custom_pipelines", "trust_remote_code"})
      if (has(key))
        add(ErrorCode::NotBuiltYet,
            fmt::format("{} = {} asks for code that comes with the weights, which gptc never runs", key,
                        shown(at(key))),
            "take the folder of a model that transformers has itself");
    for (const char *key : {"quantization_config", "compression_config"})
      if (has(key))
        add(ErrorCode::NotBuiltYet, fmt::format("{} = {}, but only a model without it is built", key, shown(at(key))),
            "take the weights from before they were quantized, of f32, bf16 or f16");
  }

  void unknownKeys() {
    for (const auto &[key, value] : config.items()) {
      auto is = [&key = key](const char *other) { return key == other; };
      if (!known.count(key) && !isNeutral(key) && llvm::none_of(family.neutral, is) &&
          llvm::none_of(family.dropouts, is))
        unknown(key, value);
    }
  }

  const std::string &file;
  const json &config;
  const Family &family;
  int64_t block;
  std::set<std::string> known;
  ModelValues values;  // those of out.said
  Reading out;
};

}  // namespace

Reading read(const std::string &file, const json &config, const Family &family, int64_t block) {
  return Reader(file, config, family, block).run();
}

}  // namespace gptc::hf
