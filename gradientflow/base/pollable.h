#pragma once

namespace gradientflow {

// A part of a rank that moves only when it is polled. NOT thread-safe: all
// parts of a rank are polled by the one thread that drives.
class Pollable {
 public:
  // Does what can be done without waiting. Returns whether anything moved.
  virtual bool Poll() = 0;

 protected:
  ~Pollable() = default;
};

}  // namespace gradientflow
