// `gptrun fill-mask`: tokens in place of masks in texts.
#pragma once

#include "frontends/hf_mask.h"
#include "tools/commands/command_line.h"
#include "tools/serve/text_batches.h"

#include <cstdint>

namespace gptc {

class Executor;

struct FillCommand {
  TextInput input;
  int64_t top = 5;  // tokens for each mask, likeliest first
};

void addFillOptions(Command fill, FillCommand &command);

/// Writes a JSON line {"text", "tokens", "filled", "masks"} for each text or pair, in order. `masks` has for each mask
/// its `place` among the tokens, from 0, and `choices`, the likeliest tokens that have a text: their number `token`,
/// `text` and probability `score` among all of the model. All masks of a text are filled at once, as if the others
/// stayed. `filled` is the text with the likeliest of each, without control tokens. Where the line of a text names an
/// id, `id` stands for `text`.
/// `form`: how the model has texts read; none is longer than the model's context. Throws what TextBatches::run and
/// MaskFiller throw, and UserError(DataInvalid) for a text without a mask.
void fillMasks(Executor &executor, const Tokenizer &tokenizer, const MaskToken &mask, TextForm form,
               const FillCommand &command);

}  // namespace gptc
