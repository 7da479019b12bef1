// The page at / of gptrun serve.
#pragma once

namespace gptc::page_text {

extern const char *const page;

}  // namespace gptc::page_text
