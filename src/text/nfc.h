// Unicode normalisation form C, for tokenizers that declare it: of Unicode 9, as the `tokenizers` package has it.
#pragma once

#include <string>

#include "text/utf8.h"

namespace winnow::text {

// Normalises well-formed UTF-8. A run's end moves along; characters that compose or reorder across runs of unlike trust
// become untrusted. Linear in the text, also for long runs of combining marks.
void to_nfc(std::string& text, Runs& runs);

}  // namespace winnow::text
