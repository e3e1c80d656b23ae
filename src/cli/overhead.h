// winnow bench --overhead: what the engine itself takes of a step, without a model.
#pragma once

namespace winnow::cli {

int overhead();  // prints it; the exit code

}  // namespace winnow::cli
