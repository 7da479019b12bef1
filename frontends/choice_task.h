// Multiple choice from JSON lines, as lm-evaluation-harness 0.4.13 and CORE put the questions.
#pragma once

#include "frontends/tokenizer/tokenizer.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gptc {

/// Of the lines of a file, all of which have that of the first.
enum class ChoiceForm {
  hellaswag,  // ctx_a and ctx_b or ctx, activity_label, endings, label
  arc,        // question, choices with text and label, answerKey
  choices,    // query or context, choices, gold
  contexts,   // context_options, continuation, gold: which context a text goes on from (CORE's schema)
};
/// "HellaSwag's form".
const char *inWords(ChoiceForm form);

/// A question: a context that goes on with one of several choices, or several contexts and what each goes on with.
struct ChoiceItem {
  int64_t line = 0;                   // of its file, from 1
  std::string id;                     // its member id or ind as JSON; "": none
  std::vector<std::string> contexts;  // one for all choices, or one for each; "" for none
  std::vector<std::string> choices;   // at least two, none empty
  size_t gold = 0;                    // the right one

  const std::string &contextOf(size_t choice) const { return contexts[contexts.size() > 1 ? choice : 0]; }
};

struct ChoiceTask {
  std::string file;
  ChoiceForm form = ChoiceForm::choices;
  std::vector<ChoiceItem> items;

  /// How messages name the place of an item.
  std::string placeOf(const ChoiceItem &item) const;
};

/// Reads the first `most` questions of a file, 0 for all; empty lines are none. Throws UserErrors: those of readInput;
/// DataInvalid with file, line and a fix for a line that is no UTF-8, no object, of another form than the first or of
/// none, has fewer than two choices, an empty one, or a right one that is none of them; and for a file without
/// questions.
ChoiceTask readChoiceTask(const std::string &file, int64_t most = 0);

/// HellaSwag's text as lm-evaluation-harness reads it: without blanks around it, marks in brackets and doubled blanks.
std::string hellaswagText(std::string_view text);

/// A question as an example with its answer, before other questions. `delimiter` stands between a context and what
/// follows.
std::string solved(const ChoiceItem &item, const std::string &delimiter);

/// A context and what follows, as tokens.
struct ChoiceTokens {
  std::vector<int32_t> tokens;
  int64_t context = 0;        // how many of them are the context's
  int64_t controlTokens = 0;  // that stand in both texts
};

/// White space at the end of the context belongs to the continuation. The continuation's tokens are those that the
/// whole text has beyond as many as the context alone has. Before a text stands what the tokenizer puts there; an
/// empty context is that alone, or the token that ends texts. Throws UserError(DataInvalid) if the continuation has no
/// tokens, if nothing can stand before it, and what Tokenizer::encode throws.
ChoiceTokens encodeChoice(const Tokenizer &tokenizer, std::string_view context, std::string_view continuation,
                          bool parseSpecial);

}  // namespace gptc
