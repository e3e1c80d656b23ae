// The verbs of the program. Each lives in a file of its own and adds its subcommand to the program; what it returns is
// called once the command line is parsed and gives the exit code. main.cpp lists them.
#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace winnow::cli {

using Run = std::function<int()>;

Run add_chat(CLI::App& program);
Run add_run(CLI::App& program);
Run add_serve(CLI::App& program);
Run add_info(CLI::App& program);
Run add_devices(CLI::App& program);
Run add_verify(CLI::App& program);
Run add_bench(CLI::App& program);
Run add_plan(CLI::App& program);

}  // namespace winnow::cli
