#include "tools/report/run_report.h"

#include "support/median.h"
#include "support/words.h"
#include "tools/report/chart.h"

#include "llvm/ADT/StringRef.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <set>

namespace gptc {

namespace {

using json = nlohmann::ordered_json;

constexpr const char *style = R"(
:root{color-scheme:light dark;--ground:#fff;--ink:#1b1f24;--dim:#5b6570;--grid:#d9dee3;--card:#f6f8fa}
@media(prefers-color-scheme:dark){:root{--ground:#14171a;--ink:#e6e9ec;--dim:#9aa4ae;--grid:#3a4149;--card:#1c2126}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:90rem;padding:1rem;background:var(--ground);color:var(--ink);
 font:16px/1.45 system-ui,sans-serif;overflow-wrap:anywhere}
h1{font-size:1.4rem;margin:.2rem 0}h2{font-size:1.15rem;margin:1.6rem 0 .5rem}
p{margin:.4rem 0}.dim{color:var(--dim)}.note{border-left:4px solid #d98a00;padding-left:.6rem}
.wide{overflow-x:auto}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{padding:.3rem .7rem;border-bottom:1px solid var(--grid);text-align:right;overflow-wrap:normal;vertical-align:top}
th{font-weight:600}td:first-child{white-space:nowrap}th:first-child,td:first-child,.left td{text-align:left}
.charts{display:grid;gap:.8rem;grid-template-columns:repeat(auto-fit,minmax(min(100%,24rem),1fr))}
figure{margin:0;min-width:0;padding:.5rem;background:var(--card);border-radius:.5rem}
svg{display:block;width:100%;height:auto}svg text{fill:currentColor}svg>rect:first-of-type{fill:none}
i.run{display:inline-block;width:.8em;height:.8em;border-radius:.2em;margin-right:.35em}
figcaption{font-size:.85rem;color:var(--dim)}figcaption span{display:inline-block;margin-right:.9rem}
summary{cursor:pointer;padding:.4rem 0}
)";

class Page {
public:
  explicit Page(const std::vector<RunRecord> &runs) : runs(runs) { nameRuns(); }

  std::string done(int refresh) {
    head(refresh);
    summary();
    if (runs.size() > 1) {
      partings();
      differences();
    }
    charts();
    forecasts();
    checkpoints();
    settings();
    html += "</body>\n</html>\n";
    return html;
  }

private:
  const std::vector<RunRecord> &runs;
  std::vector<std::string> names;
  std::string html;

  template <typename... A> void put(fmt::format_string<A...> f, A &&...a) {
    fmt::format_to(std::back_inserter(html), f, std::forward<A>(a)...);
  }

  /// Runs of one name get numbers.
  void nameRuns() {
    std::set<std::string> taken;
    for (const RunRecord &run : runs) {
      std::string name = run.name;
      for (int n = 2; !taken.insert(name).second; ++n)
        name = fmt::format("{} ({})", run.name, n);
      names.push_back(name);
    }
  }

  static std::string colour(size_t run) { return fmt::format("var(--r{})", run); }
  std::string label(size_t run) const {
    return fmt::format("<i class=\"run\" style=\"background:{}\"></i>{}", colour(run), htmlText(names[run]));
  }
  /// Hues evenly apart, lighter on a dark ground.
  std::string colours(int saturation, int lightness) const {
    std::string all;
    for (size_t r = 0; r < runs.size(); ++r)
      all += fmt::format("--r{}:hsl({} {}% {}%);", r, (210 + 360 * r / runs.size()) % 360, saturation, lightness);
    return all;
  }

  void head(int refresh) {
    html = kReportMark;
    put("<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
        "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n");
    if (refresh > 0)
      put("<meta http-equiv=\"refresh\" content=\"{}\">\n", refresh);
    const std::string title =
        runs.size() == 1 ? "Run " + names[0] : fmt::format("{} runs: {} ...", runs.size(), names[0]);
    put("<title>{}</title>\n<style>{}:root{{{}}}\n@media(prefers-color-scheme:dark){{:root{{{}}}}}\n</style>\n</"
        "head>\n",
        htmlText(title), style, colours(75, 40), colours(75, 65));
    put("<body>\n<h1>{}</h1>\n<p class=\"dim\">gptc {}, {}</p>\n", htmlText(title), GPTC_VERSION, timeNow());
    for (size_t r = 0; r < runs.size(); ++r)
      for (const std::string &note : runs[r].notes)
        put("<p class=\"note\">{}: {}</p>\n", htmlText(names[r]), htmlText(note));
  }

  void beginTable(const std::string &title, const std::vector<std::string> &columns, const char *kind = "wide") {
    if (!title.empty())
      put("<h2>{}</h2>\n", htmlText(title));
    put("<div class=\"{}\"><table>\n<tr>", kind);
    for (const std::string &c : columns)
      put("<th>{}</th>", htmlText(c));
    html += "</tr>\n";
  }
  void row(const std::string &first, const std::vector<std::string> &others) {
    put("<tr><td>{}</td>", first);
    for (const std::string &o : others)
      put("<td>{}</td>", htmlText(o));
    html += "</tr>\n";
  }
  void endTable() { html += "</table></div>\n"; }

  static std::string exact(double v) { return std::isfinite(v) ? fmt::format("{:.6g}", v) : "not finite"; }
  /// The least finite value, with its step.
  static std::string leastOf(const LoggedValues &values) {
    const std::pair<int64_t, double> *least = nullptr;
    for (const auto &v : values)
      if (std::isfinite(v.second) && (!least || v.second < least->second))
        least = &v;
    return least ? fmt::format("{} at {}", exact(least->second), least->first) : "-";
  }
  static std::string lastOf(const LoggedValues &values) { return values.empty() ? "-" : exact(values.back().second); }
  static std::string median(const LoggedValues &values, double scale = 1, const char *unit = "") {
    std::vector<double> finite;
    for (const auto &v : values)
      if (std::isfinite(v.second))
        finite.push_back(v.second * scale);
    return finite.empty() ? "-" : shortNumber(medianOf(finite)) + unit;
  }

  void summary() {
    beginTable("", {"run", "last step", "loss", "least loss", "least val loss", "tokens", "tokens/s", "MFU",
                    "not finite", "first line", "last line"});
    for (size_t r = 0; r < runs.size(); ++r) {
      const RunRecord &run = runs[r];
      const LoggedValues &loss = run.of("loss");
      const int64_t last = loss.empty() ? 0 : loss.back().first;
      const double tokens = run.tokensPerStep() * double(last);
      const auto bad = std::count_if(loss.begin(), loss.end(), [](const auto &v) { return !std::isfinite(v.second); });
      row(label(r), {fmt::format("{}", last), lastOf(loss), leastOf(loss), leastOf(run.of("val_loss")),
                     tokens > 0 ? shortNumber(tokens) : "-", median(run.of("tokens_per_s")),
                     median(run.of("mfu"), 100, "%"), fmt::format("{}", bad),
                     run.firstTime.empty() ? "-" : run.firstTime, run.lastTime.empty() ? "-" : run.lastTime});
    }
    endTable();
  }

  void partings() {
    put("<h2>Where losses part from those of {}</h2>\n<ul>\n", htmlText(names[0]));
    for (size_t r = 1; r < runs.size(); ++r) {
      for (const char *value : {"loss", "val_loss"}) {
        const Parting p = partingOf(runs[0].of(value), runs[r].of(value));
        const char *shown = value == std::string("loss") ? "loss" : "validation loss";
        if (p.common == 0 && shown != std::string("loss"))
          continue;
        put("<li>{}: ", label(r));
        if (p.common == 0)
          put("no logged step is in both</li>\n");
        else if (!p.at)
          put("{} equal at all {} common steps</li>\n", shown, p.common);
        else
          put("{} first differs at step {}: {} against {}{}</li>\n", shown, *p.at, digits(p.b), digits(p.a),
              p.lastEqual < 0 ? ", the first common step" : fmt::format("; equal up to step {}", p.lastEqual));
      }
    }
    html += "</ul>\n<p class=\"dim\">Only logged steps are compared.</p>\n";
  }
  static std::string digits(double v) { return std::isfinite(v) ? fmt::format("{}", v) : "not finite"; }

  void differences() {
    const auto all = differencesOf(runs);
    if (all.empty()) {
      put("<h2>Differences of configuration</h2>\n<p>None that the folders tell.</p>\n");
      return;
    }
    std::vector<std::string> columns = {"key"};
    columns.insert(columns.end(), names.begin(), names.end());
    beginTable("Differences of configuration", columns, "wide left");
    for (const auto &[key, values] : all) {
      std::vector<std::string> cells;
      for (const std::string &v : values)
        cells.push_back(v.empty() ? "-" : v);
      row(htmlText(key), cells);
    }
    endTable();
    html += "<p class=\"dim\">-: not set, or not known from the folder</p>\n";
  }

  void chartOf(const std::string &name, const std::string &title, ChartScale scale, double factor = 1,
               const char *unit = "", bool dots = false) {
    std::vector<ChartCurve> curves;
    std::string legend;
    for (size_t r = 0; r < runs.size(); ++r) {
      const LoggedValues &values = runs[r].of(name);
      if (values.empty())
        continue;
      ChartCurve c{colour(r), {}, dots};
      size_t bad = 0;
      for (const auto &[step, v] : values) {
        c.points.push_back({double(step), v * factor});
        bad += !std::isfinite(v);
      }
      const double last = values.back().second * factor;
      legend += fmt::format("<span>{} {}{}{}</span>", label(r), std::isfinite(last) ? exact(last) : "not finite",
                            std::isfinite(last) ? unit : "",
                            bad ? fmt::format(" ({} not finite: \u00d7)", bad) : std::string());
      curves.push_back(std::move(c));
    }
    if (!curves.empty())
      put("<figure role=\"img\" aria-label=\"{}\">{}<figcaption>{}</figcaption></figure>\n",
          htmlText(title + " by step"), chart(title, curves, scale), legend);
  }

  void charts() {
    html += "<h2>Curves</h2>\n<div class=\"charts\">\n";
    chartOf("loss", "Loss", ChartScale::byRatio);
    chartOf("val_loss", "Validation loss", ChartScale::byRatio, 1, "", true);
    std::set<std::string> more;
    for (const RunRecord &run : runs)
      for (const auto &[name, values] : run.values)
        if (llvm::StringRef(name).starts_with("val_") && name != "val_loss")
          more.insert(name);
    for (const std::string &name : more)
      chartOf(name, "Validation: " + name.substr(4), ChartScale::linear, 1, "", true);
    chartOf("grad_norm", "Norm of the gradient", ChartScale::byRatio);
    chartOf("lr", "Learning rate", ChartScale::fromZero);
    chartOf("tokens_per_s", "Tokens per second", ChartScale::fromZero);
    chartOf("mfu", "MFU", ChartScale::fromZero, 100, "%");
    chartOf("mfu_measured", "Share of the measured peak", ChartScale::fromZero, 100, "%");
    chartOf("loss_scale", "Scale of the loss", ChartScale::byRatio);
    html += "</div>\n<p class=\"dim\">By step. A value under a curve is the last one.</p>\n";
  }

  static std::string seconds(const json &v) {
    return v.is_number() ? fmt::format("{:.4g} ms", 1e3 * v.get<double>()) : "-";
  }
  static std::string ratio(const json &measured, const json &predicted) {
    if (!measured.is_number() || !predicted.is_number() || !(predicted.get<double>() > 0))
      return "-";
    return fmt::format("{:.3g}", measured.get<double>() / predicted.get<double>());
  }
  static std::string bytes(const json &v) { return v.is_number() ? formatBytes(v.get<double>()) : "-"; }
  static std::string shown(const json &v) {
    return v.is_string() ? v.get<std::string>() : v.is_null() ? "-" : v.dump();
  }

  void forecasts() {
    for (size_t r = 0; r < runs.size(); ++r) {
      if (runs[r].forecasts.empty())
        continue;
      const json &last = runs[r].forecasts.back(), &p = last["predicted"], &m = last["measured"];
      beginTable("Forecast and measurement: " + names[r], {"", "forecast", "measured", "ratio"});
      auto line = [&](const std::string &name, const json &predicted, const json &measured) {
        row(htmlText(name), {seconds(predicted), seconds(measured), ratio(measured, predicted)});
      };
      line("a step", part(p, "s_per_step"), part(m, "s_per_step"));
      std::set<std::string> kinds;
      for (const json *side : {&p, &m})
        if (const json &kernels = part(*side, "kernels"); kernels.is_object())
          for (const auto &[kind, value] : kernels.items())
            kinds.insert(kind);
      for (const std::string &kind : kinds)
        line(kind, part(part(p, "kernels"), kind.c_str()), part(part(m, "kernels"), kind.c_str()));
      line("communication", part(p, "communication"), part(m, "communication"));
      const json &plan = part(p, "bytes"), &process = part(m, "bytes");
      row("memory: the plan's, and the whole process", {bytes(plan), bytes(process), ratio(process, plan)});
      endTable();
      processes(r);
    }
  }

  void processes(size_t r) {
    beginTable("Processes and ranks: " + names[r], {"ended", "ranks", "machines", "target", "CPU", "threads",
                                                    "tokens a step", "steps timed", "a step", "memory"});
    for (const json &f : runs[r].forecasts) {
      const json &m = part(f, "measured");
      row(htmlText(shown(part(f, "time"))),
          {shown(part(f, "ranks")), shown(part(f, "nodes")), shown(part(f, "target")), shown(part(f, "cpu")),
           shown(part(f, "threads")), shown(part(f, "tokens_per_step")), shown(part(f, "steps")),
           seconds(part(m, "s_per_step")), bytes(part(m, "bytes"))});
    }
    endTable();
  }

  void checkpoints() {
    for (size_t r = 0; r < runs.size(); ++r) {
      if (runs[r].checkpoints.empty())
        continue;
      beginTable("Checkpoints: " + names[r], {"step", "validation loss"});
      for (const RunRecord::Saved &c : runs[r].checkpoints)
        row(fmt::format("{}", c.step), {c.valLoss ? exact(*c.valLoss) : "-"});
      endTable();
    }
  }

  void settings() {
    html += "<h2>Configuration</h2>\n";
    for (size_t r = 0; r < runs.size(); ++r) {
      put("<details{}><summary>{}</summary>\n<p class=\"dim\">{}</p>\n", runs.size() == 1 ? " open" : "", label(r),
          htmlText(runs[r].folder));
      if (runs[r].settings.empty()) {
        put("<p>Not known: no process of the run has ended or saved yet.</p>\n");
      } else {
        beginTable("", {"key", "value"}, "wide left");
        for (const auto &[key, value] : runs[r].settings)
          row(htmlText(key), {value});
        endTable();
      }
      html += "</details>\n";
    }
  }
};

}  // namespace

std::string htmlText(const std::string &text) {
  // Bytes that are no UTF-8 become signs of replacement.
  const std::string valid =
      parseJson(nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)).get<std::string>();
  std::string out;
  for (char c : valid)
    switch (c) {
    case '<':
      out += "&lt;";
      break;
    case '>':
      out += "&gt;";
      break;
    case '&':
      out += "&amp;";
      break;
    case '"':
      out += "&quot;";
      break;
    case '\'':
      out += "&#39;";
      break;
    default:
      out += static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t' ? ' ' : c;
    }
  return out;
}

std::string reportOf(const std::vector<RunRecord> &runs, int refresh) { return Page(runs).done(refresh); }

}  // namespace gptc
