// A report on runs as one HTML file: styles and pictures are inside, nothing is loaded, no script runs.
#pragma once

#include "tools/report/run_record.h"

namespace gptc {

/// How the file begins, by which a report is known as one.
constexpr const char *kReportMark = "<!doctype html>\n<!-- gptc report -->\n";

/// Text in which nothing is markup, for contents and for attributes in double quotes.
std::string htmlText(const std::string &text);

/// The report. `runs`: one or more. The first is the one that others are compared with. `refresh`: seconds after which
/// a browser loads it again; 0: never.
std::string reportOf(const std::vector<RunRecord> &runs, int refresh = 0);

}  // namespace gptc
