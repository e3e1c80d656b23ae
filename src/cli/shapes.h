// Configs of published models, for verbs that need no checkpoint (--shape).
#pragma once

#include <string>

#include "weights/config.h"

namespace CLI {
class App;
}

namespace winnow::cli {

struct ShapeFlags {
  std::string shape;
  int64_t layers = 2;
};
void add_shape_flags(CLI::App& verb, ShapeFlags& flags);
// Whether a shape is asked for; Error (usage) if it is unknown or MODEL is given besides.
bool wants_shape(const ShapeFlags& flags, const std::string& model);
// GLM-5.3-Flash at its published sizes, cut to `layers` layers: a KDA layer with a dense MLP, an MLA layer with experts, then KDA
// layers with experts and so on, as layers 2, 3, 4, ... of the model are.
weights::Config glm_5_3_flash(int64_t layers);

}  // namespace winnow::cli
