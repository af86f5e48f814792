#include "gradientflow/collectives/staged_job.h"

#include <algorithm>

namespace gradientflow {

// What comes before the next own part is for the network card, which may have
// it as soon as this one is done. Without own parts there is still a piece: the
// device tells with it that the memory may be read.
StagedPiece StagedJob::NextOut() {
  if (direct) {
    if (own_parts.empty()) return {this, &wire, 0, 0, output.count};
    const Extent& part = own_parts[own_sent++];
    const bool last = own_sent == own_parts.size();
    return {this, &wire, part.begin, part.count,
            last ? output.count : own_parts[own_sent].begin};
  }
  const bool of_input = sent_out < input.count;
  const StagedSide& side = of_input ? input : output;
  const std::size_t begin = of_input ? sent_out : sent_out - input.count;
  const std::size_t count = std::min(side.piece_elements, side.count - begin);
  return {this, &side, begin, count, sent_out + count};
}

// The inner call's segments and the pieces need not have the same bounds: a
// piece is ready to be copied in when all of its elements are finished.
void StagedJob::Finished(std::size_t begin, std::size_t count) {
  if (!status.ok()) return;
  const std::size_t end = begin + count;
  if (direct) {
    for (auto part = std::lower_bound(
             own_parts.begin(), own_parts.end(), begin,
             [](const Extent&a, std::size_t at) { return a.begin < at; });
         part != own_parts.end() && part->begin < end; ++part) {
      ready->push_back({this, &wire, part->begin, part->count});
    }
    return;
  }
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

void StagedJob::UnpackAll() {
  unpacking = true;
  ready->push_back({this, &output, 0, output.count});
}

void StagedJob::GoStaged() {
  direct = packs = false;
  own_parts.clear();
  finished.assign(in_pieces(), 0);
}

void StagedJob::Reset() {
  way = Way::kHost;
  direct = packs = unpacking = false;
  image = nullptr;
  own_parts.clear();
  own_sent = 0;
  input = output = wire = StagedSide();
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
