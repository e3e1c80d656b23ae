// The tensors that a config asks for, by their official names, in the three parts of a checkpoint.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "weights/config.h"

namespace winnow::weights {

enum class Part : uint8_t { trunk, mtp, vision };
std::string_view name_of(Part p);

inline constexpr std::string_view kTextPrefix = "model.language_model.";
inline constexpr std::string_view kVisionPrefix = "model.visual.";

// Calls `tensor` for each; nothing is kept, so the size of a config costs no memory. The three convolutions of a KDA
// layer are one tensor here, self_attn.conv1d.weight [3P, 1, taps]; experts come one by one (see source.h).
using Visit = std::function<void(const std::string& name, std::span<const int64_t> shape)>;
void for_each_tensor(const Config& c, Part part, const Visit& tensor);

// The part that a name belongs to by its prefix. The MTP layers are those from the trunk's end on.
Part part_of(std::string_view name, const Config& c);

}  // namespace winnow::weights
