#pragma once

#include <algorithm>
#include <exception>
#include <functional>
#include <iostream>
#include <string>

namespace gradientflow::benchmarks {

// The main() of a program that takes orders: says "ready", and answers each
// line of standard input with a line, "ok" and what `answer` returns, or
// "error" and what it throws. In between it blocks, and uses no processor.
// Returns the exit status at the end of the input.
inline int Serve(
    const std::function<std::string(const std::string& order)>& answer) {
  std::cout << "ready" << std::endl;
  for (std::string order, text; std::getline(std::cin, order);) {
    try {
      text = "ok " + answer(order);
    } catch (const std::exception& error) {
      text = std::string("error ") + error.what();
    }
    std::replace(text.begin(), text.end(), '\n', ' ');
    std::cout << text << std::endl;
  }
  return 0;
}

}  // namespace gradientflow::benchmarks
