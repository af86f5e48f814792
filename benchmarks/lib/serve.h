#pragma once

#include <functional>
#include <string>

namespace gradientflow::benchmarks {

// The main() of a program that takes orders: says "ready", and answers each
// line of standard input with a line, "ok" and what `answer` returns, or
// "error" and what it throws. In between it blocks, and uses no processor.
// Returns the exit status at the end of the input.
int Serve(const std::function<std::string(const std::string& order)>& answer);

}  // namespace gradientflow::benchmarks
