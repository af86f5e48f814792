#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "gradientflow/base/mutex.h"
#include "gradientflow/base/status.h"
#include "gradientflow/device/device.h"

namespace gradientflow {

// Orders communication after backward on a device without stopping either, and
// knows when each part of the pool was there, on the device's clock. A
// hook that completes a section of the pool records an event on the stream that
// computes (the producer). A stream that reads the pool (a consumer) waits for
// the event on the device. The host waits for neither.
class DeviceSync {
 public:
  using SectionEnds = std::vector<std::size_t>;

  // `section_ends` says where the sections of the pool end, in elements. Makes
  // two events for each: the times of a step are asked for while the hooks may
  // be in the next one. `device` outlives the result. The producer is the
  // device's legacy default stream until SetProducer().
  static Result<std::unique_ptr<DeviceSync>> Create(Device& device,
                                                    SectionEnds section_ends);

  // `native` is the stream that gradients are computed on; the caller owns it.
  // If the stream is not the device's, or is being captured, the producer stays
  // as it was. Between steps only: the sections of a step are Ready() on one
  // stream.
  Status SetProducer(void* native) GF_EXCLUDES(mutex_);
  // NOT thread-safe; between steps.
  Stream& producer() { return *producer_; }

  // The gradients that are marked from here on are those of the next step.
  // REQUIRES that no hook runs.
  void NextStep() GF_EXCLUDES(mutex_);
  // All work that writes the gradients of that section has been given to the
  // producer. May be called on any thread.
  Status Ready(std::size_t section) GF_EXCLUDES(mutex_);
  // Zeroes bytes of the pool, in the order of the producer. May be called on
  // any thread.
  Status Zero(void* data, std::size_t bytes) GF_EXCLUDES(mutex_);

  // Work that `consumer` is given from now on runs after the work that the
  // producer has been given so far. Called by the driving thread.
  Status Fence(Stream& consumer) GF_EXCLUDES(mutex_);

  // Work that the producer is given from now on runs after `event`. May be
  // called on any thread.
  Status Follow(const Event& event) GF_EXCLUDES(mutex_);

  // Work that `consumer` is given from now on runs after the elements before
  // `written_end` are written. Called by the driving thread, with ends that
  // ascend within a step. It asks for no more than is needed: what is submitted
  // ahead of backward must not wait for all of it. If one thread calls Ready(),
  // one event is enough, that of the section that was Ready() last; several
  // threads may share a producer that is a stream for each of them
  // (cudaStreamPerThread). Sections that were never Ready(), since the step was
  // given up, wait for all that the producer has been given.
  Status AwaitWritten(std::size_t written_end, Stream& consumer)
      GF_EXCLUDES(mutex_);

  // The step whose times are asked for.
  enum class Of : std::uint8_t { kThisStep, kStepBefore };
  // Returns the seconds from the first Ready() of a step to that of `section`,
  // or to `event`, when the device came to them. Called by the driving thread.
  // REQUIRES that every section of the step was ready, that the device has come
  // to all of these, and that `event` keeps its time.
  Result<double> ReadySeconds(Of step, std::size_t section) const
      GF_EXCLUDES(mutex_) {
    return SecondsOf(step, *events_[SetOf(step)][section]);
  }
  Result<double> SecondsOf(Of step, const Event& event) const
      GF_EXCLUDES(mutex_);
  // The same for the last of the sections [first, end) that was there: one
  // question for all of them, if one thread has called Ready(). REQUIRES
  // first < end.
  Result<double> LastReadySeconds(Of step, std::size_t first,
                                  std::size_t end) const GF_EXCLUDES(mutex_);
  // Returns whether the device has come to all that was Ready() in this step.
  // Asks the device, without a lock that a hook takes. Called by the driving
  // thread.
  Result<bool> Reached() const GF_EXCLUDES(mutex_);

 private:
  DeviceSync(Device& device, SectionEnds section_ends)
      : device_(device),
        section_ends_(std::move(section_ends)),
        places_{std::vector<std::size_t>(section_ends_.size()),
                std::vector<std::size_t>(section_ends_.size())} {}

  int SetOf(Of step) const { return step == Of::kThisStep ? now_ : 1 - now_; }

  // The sections that were the first and the last in the producer's order, and
  // whether threads other than that of the first have called Ready().
  struct Reach {
    std::thread::id thread;
    bool mixed = false;
    std::size_t count = 0;
    std::size_t first = 0;
    std::size_t last = 0;
  };

  Device& device_;
  const SectionEnds section_ends_;
  mutable Mutex mutex_;  // One thread at a time submits to the producer.
  std::unique_ptr<Stream> producer_;
  // By step, in turn, and section. `now_` changes only between steps.
  std::vector<std::unique_ptr<Event>> events_[2];
  Reach reach_[2] GF_GUARDED_BY(mutex_);
  int now_ = 0;
  // The place of each section in the producer's order, from 1 on; 0 until it is
  // Ready().
  std::vector<std::size_t> places_[2] GF_GUARDED_BY(mutex_);
  // How many sections of the step a consumer awaits, and the last of their
  // places.
  const Stream* consumer_ = nullptr;
  std::size_t awaited_ = 0;
  std::size_t awaited_place_ = 0;
  std::unique_ptr<Event> fence_;
  std::unique_ptr<Event> probe_;  // Shows whether a stream takes work.
};

}  // namespace gradientflow
