#include "gradientflow/buckets/wire_times.h"

#include <utility>

#include "gradientflow/base/str_cat.h"

namespace gradientflow {

Status WireTimes::Begin(std::size_t exchanges) {
  ended_ = 0;
  while (exchanges_.size() < exchanges) {
    Result<std::unique_ptr<Event>> end = device_->NewTimedEvent();
    if (!end.ok()) return end.status();
    exchanges_.push_back({0, std::move(end).value()});
  }
  return Status();
}

Status WireTimes::Ended(std::size_t written_end) {
  if (ended_ == exchanges_.size()) {
    return Status(StatusCode::kInternal,
                  StrCat("exchange ", ended_, " of a step has no event"));
  }
  Exchange& exchange = exchanges_[ended_++];
  exchange.written_end = written_end;
  return wire_->Record(exchange.end.get());
}

}  // namespace gradientflow
