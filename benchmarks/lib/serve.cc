#include "benchmarks/lib/serve.h"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <iostream>

namespace gradientflow::benchmarks {

int Serve(const std::function<std::string(const std::string&)>& answer) {
  std::puts("ready");
  std::fflush(stdout);
  for (std::string order, text; std::getline(std::cin, order);) {
    try {
      text = "ok " + answer(order);
    } catch (const std::exception& error) {
      text = std::string("error ") + error.what();
    }
    std::replace(text.begin(), text.end(), '\n', ' ');
    std::puts(text.c_str());
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace gradientflow::benchmarks
