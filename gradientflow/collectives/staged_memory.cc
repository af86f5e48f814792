#include "gradientflow/collectives/staged_memory.h"

#include <utility>

#include "gradientflow/base/str_cat.h"

namespace gradientflow {
namespace {

using Way = StagedJob::Way;

constexpr std::size_t kWordsAtATime = 1024;
constexpr std::size_t kAlignment = 256;

std::size_t Aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// The part of the staging memory that a channel gets.
std::size_t ShareOf(const StagedMemoryArgs& args, Channel channel) {
  const std::size_t quarter = args.staging_bytes / 4;
  return channel == Channel::kGradients ? 3 * quarter : quarter;
}

}  // namespace

StagedMemory::StagedMemory(const StagedMemoryArgs& args)
    : args_(args),
      staging_{StagingMemory(*args.device, args.arena, args.places,
                             ShareOf(args, Channel::kPlain)),
               StagingMemory(*args.device, args.arena, args.places,
                             ShareOf(args, Channel::kGradients))},
      images_{ImageMemory(*args.device, args.places,
                          ShareOf(args, Channel::kPlain)),
              ImageMemory(*args.device, args.places,
                          ShareOf(args, Channel::kGradients))} {}

// Gives the job its image if it needs one and has none. Returns false if there
// is no room for it until others are given back. If there can be none, the job
// is staged.
bool StagedMemory::AdmitImage(StagedJob* job) {
  if (!job->packs || job->image != nullptr) return true;
  ImageMemory& images = images_[static_cast<std::size_t>(job->call.channel)];
  Status why = images.refused();
  if (why.ok()) {
    const Result<std::byte*> block = images.Take(job->output.host_bytes());
    if (block.ok()) job->image = block.value();
    why = block.status();
  }
  if (!why.ok()) {
    job->GoStaged();
    TellOnce(StrCat("gradients on ", args_.device->description(),
                    " are staged in host memory for RDMA"),
             why);
    return true;
  }
  job->wire.device = Elements(job->image, SizeOf(job->call.wire));
  job->wire.device_dtype = job->call.wire;
  return job->image != nullptr;
}

// Returns the device word that records whether results are finite, or null if
// no one needs it. A rank that is alone needs it, and so does a rank whose
// buffer has a smaller range than the wire dtype, in which a finite result may
// overflow.
Result<std::uint32_t*> StagedMemory::NonfiniteWord(const StagedJob& job) {
  const DType dtype = job.call.dtype;
  const bool wanted = job.way == Way::kAlone
                          ? IsGradientType(dtype)
                          : job.way == Way::kFed && dtype != DType::kFloat32 &&
                                dtype != job.call.wire;
  if (!wanted) return nullptr;
  while (words_.size() <= job.number / kWordsAtATime) {
    Result<DeviceMemory> words =
        args_.device->Allocate(kWordsAtATime * sizeof(std::uint32_t));
    if (!words.ok()) return words.status();
    words_.push_back(std::move(words).value());
  }
  auto* words = reinterpret_cast<std::uint32_t*>(
      words_[job.number / kWordsAtATime].get());
  return words + job.number % kWordsAtATime;
}

Status StagedMemory::Admit(StagedJob* job) {
  Result<std::uint32_t*> word = NonfiniteWord(*job);
  if (!word.ok()) return word.status();
  const bool alone = job->way == Way::kAlone;
  const std::size_t input = alone ? 0 : Aligned(job->input.host_bytes());
  const std::size_t output = alone ? 0 : Aligned(job->output.host_bytes());
  const std::size_t needed =
      input + output + (word.value() == nullptr ? 0 : sizeof(std::uint32_t));
  if (!AdmitImage(job)) return Status();
  if (needed > 0) {
    StagingMemory& memory =
        staging_[static_cast<std::size_t>(job->call.channel)];
    const Result<std::byte*> block = memory.Take(needed);
    if (!block.ok()) {
      return Status(
          block.status().code(),
          StrCat("a call needs its bytes on the wire, here ", needed,
                 ", in page-locked memory: ", block.status().message(),
                 "; lower bucket_bytes or the size of the call"));
    }
    TellOnce("RDMA copies all that is staged", memory.unreached());
    if (block.value() == nullptr) return Status();
    job->staging = block.value();
    job->input.host = job->staging;
    job->output.host = job->wire.host = job->staging + input;
    job->nonfinite = word.value();
    job->nonfinite_host = reinterpret_cast<std::uint32_t*>(
        word.value() == nullptr ? nullptr : job->staging + input + output);
  }
  job->admitted = true;
  return Status();
}

void StagedMemory::TakeBack(StagedJob* job) {
  const auto channel = static_cast<std::size_t>(job->call.channel);
  const std::byte* const staging = std::exchange(job->staging, nullptr);
  if (staging != nullptr) staging_[channel].Give(staging);
  const std::byte* const image = std::exchange(job->image, nullptr);
  if (image != nullptr) images_[channel].Give(image);
}

void StagedMemory::TellOnce(const std::string& what, const Status& why) {
  if (why.ok() || args_.logger == nullptr || !told_.insert(what).second) return;
  args_.logger->Log(LogLevel::kWarning, StrCat(what, ": ", why.message()));
}

std::size_t StagedMemory::staging_bytes() const {
  std::size_t bytes = 0;
  for (const StagingMemory& memory : staging_) bytes += memory.capacity_bytes();
  return bytes;
}

}  // namespace gradientflow
