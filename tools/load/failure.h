// Why a request of a load test failed.
#pragma once

#include <string>

namespace gptc::load {

/// Thrown by what reads a connection. The kinds are few, so that they can be counted: "HTTP 503", "timed out",
/// "connection refused", "malformed answer".
struct Failure {
  std::string kind, detail;  // `detail`: of this one, for people; may be ""
  /// "HTTP 503: too many requests wait already"
  std::string text() const { return detail.empty() ? kind : kind + ": " + detail; }
};

/// An answer that breaks the rules of HTTP, of server-sent events or of OpenAI's interface.
inline Failure malformed(std::string what) { return {"malformed answer", std::move(what)}; }

}  // namespace gptc::load
