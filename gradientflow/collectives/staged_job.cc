#include "gradientflow/collectives/staged_job.h"

#include <algorithm>

namespace gradientflow {

StagedPiece StagedJob::NextOut() {
  const bool of_input = sent_out < input.count;
  const StagedSide& side = of_input ? input : output;
  const std::size_t begin = of_input ? sent_out : sent_out - input.count;
  return {this, &side, begin,
          std::min(side.piece_elements, side.count - begin)};
}

// The inner call's segments and the pieces need not have the same bounds: a
// piece is ready to be copied in when all of its elements are finished.
void StagedJob::Finished(std::size_t begin, std::size_t count) {
  if (!status.ok()) return;
  const std::size_t end = begin + count;
  while (begin < end) {
    const std::size_t piece = begin / output.piece_elements;
    const std::size_t first = piece * output.piece_elements;
    const std::size_t size =
        std::min(output.piece_elements, output.count - first);
    const std::size_t here_end = std::min(end, first + size);
    finished[piece] += here_end - begin;
    if (finished[piece] == size) {
      ready->push_back({this, &output, first, size});
    }
    begin = here_end;
  }
}

void StagedJob::FinishedAll() {
  if (writes_output && output.count > 0) Finished(0, output.count);
}

void StagedJob::Reset() {
  way = Way::kHost;
  input = output = StagedSide();
  reads_output = writes_output = false;
  extent_starts.clear();
  staging = nullptr;
  nonfinite = nonfinite_host = nullptr;
  admitted = begun = inner_done = false;
  sent_out = here = sent_in = in_place = on_device = 0;
  finished.clear();
  flags = 0;
  status = Status();
}

}  // namespace gradientflow
