#include "benchmarks/allreduce/batch.h"

#include <sstream>

#include "gradientflow/base/str_cat.h"

namespace gradientflow::benchmarks {

std::string Encode(const Batch& batch) {
  return StrCat(batch.bytes, ' ', Name(batch.dtype), ' ', Name(batch.wire), ' ',
                Name(batch.op), ' ', Name(batch.algorithm), ' ', batch.way, ' ',
                batch.warmup, ' ', batch.iterations, ' ', batch.check ? 1 : 0);
}

Result<Batch> DecodeBatch(const std::string& line) {
  std::istringstream in(line);
  Batch batch;
  std::string dtype;
  std::string wire;
  std::string op;
  std::string algorithm;
  const bool read = static_cast<bool>(
      in >> batch.bytes >> dtype >> wire >> op >> algorithm >> batch.way >>
      batch.warmup >> batch.iterations >> batch.check);
  const auto type = ParseDType(dtype);
  const auto wire_type = ParseDType(wire);
  const auto reduce = ParseReduceOp(op);
  if (!read || !type || !wire_type || !reduce || batch.iterations < 1) {
    return Status(StatusCode::kDataLoss,
                  StrCat("expected a batch, got \"", line, "\""));
  }
  const auto parsed = ParseAllreduceAlgorithm(algorithm);
  if (!parsed.ok()) return parsed.status();
  batch.dtype = *type;
  batch.wire = *wire_type;
  batch.op = *reduce;
  batch.algorithm = parsed.value();
  return batch;
}

std::string Encode(const Result<Outcome>& outcome) {
  if (outcome.ok()) {
    return StrCat("ok ", outcome.value().seconds, ' ', outcome.value().wrong);
  }
  std::string line = "error " + outcome.status().ToString();
  for (char& c : line) {
    if (c == '\n') c = ' ';
  }
  return line;
}

Result<Outcome> DecodeOutcome(const std::string& line) {
  std::istringstream in(line);
  std::string word;
  Outcome outcome;
  in >> word;
  if (word == "error") {
    std::string text;
    std::getline(in >> std::ws, text);
    return Status(StatusCode::kAborted, text);
  }
  if (word == "ok" && in >> outcome.seconds >> outcome.wrong) return outcome;
  return Status(StatusCode::kDataLoss,
                StrCat("expected an outcome, got \"", line, "\""));
}

}  // namespace gradientflow::benchmarks
