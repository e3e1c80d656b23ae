// A verb's flags in a file: each line is a flag's name without dashes and its value, as `port = 8080`; the model folder is
// `model`. What the command line gives comes before what the file has.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace winnow::cli {

// Sets what the command line left open. Throws Error, which names the file and the key.
void apply_config(CLI::App& verb, const std::string& path);
// All flags with their help and what they are now, as apply_config reads them.
std::string config_text(const CLI::App& verb);

}  // namespace winnow::cli
