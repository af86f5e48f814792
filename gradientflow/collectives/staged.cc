#include "gradientflow/collectives/staged.h"

#include <algorithm>
#include <utility>

#include "gradientflow/base/str_cat.h"
#include "transports/wire.h"

// How a call enters a StagedCollective. It becomes a StagedJob:
//
//   Enter()    checks the call; a call on host memory goes straight to the
//              inner collective unless it has to wait for its turn
//   Prepare()  decides the job's way, and records on the caller's stream when
//              its buffers may be read
//   Admit()    gives it page-locked staging memory, once there is room
//
// How jobs move on from there is in staged_progress.cc.
namespace gradientflow {
namespace {

using Way = StagedJob::Way;

constexpr std::size_t kLeastPiece = 4096;
constexpr std::size_t kWordsAtATime = 1024;
constexpr std::size_t kAlignment = 256;

std::size_t Aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// The part of the staging memory that a channel gets.
std::size_t ShareOf(const StagedOptions& options, Channel channel) {
  const std::size_t quarter = options.staging_bytes / 4;
  return channel == Channel::kGradients ? 3 * quarter : quarter;
}

}  // namespace

StagedCollective::StagedCollective(const StagedArgs& args,
                                   const StagedOptions& options)
    : args_(args),
      options_(options),
      staging_{StagingMemory(*args.device, args.arena, args.places,
                             ShareOf(options, Channel::kPlain)),
               StagingMemory(*args.device, args.arena, args.places,
                             ShareOf(options, Channel::kGradients))},
      images_{ImageMemory(*args.device, args.places,
                          ShareOf(options, Channel::kPlain)),
              ImageMemory(*args.device, args.places,
                          ShareOf(options, Channel::kGradients))} {}

StagedCollective::~StagedCollective() = default;

Result<std::unique_ptr<StagedCollective>> StagedCollective::Create(
    const StagedArgs& args, const StagedOptions& options) {
  StagedOptions adapted = options;
  adapted.piece_bytes = std::max(options.piece_bytes, kLeastPiece);
  adapted.pieces_in_flight = std::max(options.pieces_in_flight, 1);
  std::unique_ptr<StagedCollective> staged(new StagedCollective(args, adapted));
  GF_RETURN_IF_ERROR(staged->Build());
  return staged;
}

Status StagedCollective::Build() {
  for (std::unique_ptr<PieceStream>* pieces : {&out_, &in_}) {
    Result<std::unique_ptr<PieceStream>> made = PieceStream::Create(
        *args_.device, options_.pieces_in_flight, options_.piece_bytes);
    if (!made.ok()) return made.status();
    *pieces = std::move(made).value();
  }
  Result<std::unique_ptr<Stream>> gate =
      args_.device->NewStream(/*urgent=*/true);
  if (!gate.ok()) return gate.status();
  gate_ = std::move(gate).value();
  return Status();
}

bool StagedCollective::Busy(GroupId group, Channel channel) const {
  return args_.inner->Busy(group, channel) ||
         std::any_of(jobs_.begin(), jobs_.end(), [&](const auto& job) {
           return job->call.group == group && job->call.channel == channel;
         });
}

std::size_t StagedCollective::in_flight() const {
  return jobs_.size() + ended_.size() + args_.inner->in_flight() - in_inner_;
}

std::string StagedCollective::OldestCall() const {
  std::string text = args_.inner->OldestCall();
  if (!text.empty() || jobs_.empty()) return text;
  const CollectiveCall& call = jobs_.front()->call;
  return StrCat(Name(call.kind), " of ", call.count, " ", Name(call.dtype),
                ", step ", call.step, " bucket ", call.bucket, ", on its way ",
                jobs_.front()->begun ? "to " : "from ",
                args_.device->description());
}

std::size_t StagedCollective::staging_bytes() const {
  std::size_t bytes = 0;
  for (const StagingMemory& memory : staging_) bytes += memory.capacity_bytes();
  return bytes;
}

bool StagedCollective::OnDevice(const void* buffer,
                                std::size_t elements) const {
  return elements > 0 && args_.device->Owns(buffer);
}

void StagedCollective::Start(const CollectiveCall& call, Done done) {
  const Status status = Enter(call, done);
  if (!status.ok()) ended_.Add(done, 0, status);
}

Status StagedCollective::Enter(const CollectiveCall& call, Done done) {
  GF_RETURN_IF_ERROR(args_.fabric->status());
  const CallBuffers buffers = BuffersOf(call, args_.group);
  const bool staged = OnDevice(call.input, buffers.input) ||
                      OnDevice(call.output, buffers.output);
  if (staged && call.feed != nullptr) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat(Name(call.kind),
                         ": a feed is for the host's memory, "
                         "not for that of ",
                         args_.device->description()));
  }
  const bool must_wait =
      std::any_of(jobs_.begin(), jobs_.end(), [&](const auto& job) {
        return !job->begun && job->call.channel == call.channel;
      });
  if (!staged && !must_wait) {
    args_.inner->Start(call, done);
    return Status();
  }
  Result<std::unique_ptr<StagedJob>> made = NewJob();
  if (!made.ok()) {
    // The call cannot run on this rank. The other ranks do not know that and
    // would wait for it, so the whole job fails.
    args_.fabric->Fail(made.status());
    return made.status();
  }
  jobs_.push_back(std::move(made).value());
  StagedJob* job = jobs_.back().get();
  job->call = call;
  job->done = done;
  if (!staged) {
    job->admitted = true;
    return Status();
  }
  const Status prepared = Prepare(job);
  if (!prepared.ok()) Fail(job, "preparing it", prepared);
  return Status();
}

Result<std::unique_ptr<StagedJob>> StagedCollective::NewJob() {
  if (!spare_.empty()) {
    std::unique_ptr<StagedJob> job = std::move(spare_.back());
    spare_.pop_back();
    return job;
  }
  Result<std::unique_ptr<Event>> gate = args_.device->NewEvent();
  if (!gate.ok()) return gate.status();
  auto job = std::make_unique<StagedJob>();
  job->gate = std::move(gate).value();
  job->ready = &ready_in_;
  job->number = jobs_made_++;
  return job;
}

StagedSide StagedCollective::SideOf(const StagedJob& job, bool of_input) const {
  const CollectiveCall& call = job.call;
  const CallBuffers buffers = BuffersOf(call, args_.group);
  StagedSide side;
  const void* memory = of_input ? call.input : call.output;
  const std::size_t count = of_input ? buffers.input : buffers.output;
  if (!OnDevice(memory, count)) return side;
  // Inputs are only read.
  auto* data = static_cast<std::byte*>(const_cast<void*>(memory));
  const bool gaps = !of_input && !call.extents.empty();
  side.device = gaps ? Elements(data, SizeOf(call.dtype), &call.extents,
                                &job.extent_starts)
                     : Elements(data, SizeOf(call.dtype));
  side.device_dtype = call.dtype;
  side.host_dtype = call.wire;
  side.count = count;
  side.piece_elements = options_.piece_bytes / SizeOf(call.wire);
  return side;
}

Status StagedCollective::Prepare(StagedJob* job) {
  const CollectiveCall& call = job->call;
  const bool allreduce = call.kind == CollectiveKind::kAllreduce;
  const bool root = args_.group.rank == call.root;
  std::size_t before = 0;
  for (const Extent& extent : call.extents) {
    job->extent_starts.push_back(before);
    before += extent.count;
  }
  job->input = SideOf(*job, /*of_input=*/true);
  job->output = SideOf(*job, /*of_input=*/false);
  if (allreduce && args_.group.size == 1) {
    job->way = Way::kAlone;
  } else {
    const bool broadcast = call.kind == CollectiveKind::kBroadcast;
    const bool fed = allreduce && IsGradientType(call.dtype);
    job->way = fed ? Way::kFed : Way::kWhole;
    job->reads_output = allreduce || (broadcast && root);
    job->writes_output = !broadcast || !root;
    job->direct = GoesDirect(job);
    job->finished.assign(job->direct ? 0 : job->in_pieces(), 0);
  }
  return gate_->Record(job->gate.get());
}

// Also finds out, then, what the host has to do itself, and where the card is
// to find the rest.
bool StagedCollective::GoesDirect(StagedJob* job) {
  const CollectiveCall& call = job->call;
  const StagedSide& output = job->output;
  if (args_.places == nullptr || job->way != Way::kFed) return false;
  if (output.count == 0) return false;
  const std::byte* const data = output.device.Contiguous(0, output.count);
  job->packs = call.dtype != call.wire || data == nullptr ||
               !args_.places->Reaches(data, output.host_bytes());
  const ImageMemory& images = images_[static_cast<std::size_t>(call.channel)];
  if ((job->packs && !images.usable()) ||
      !args_.inner->OwnParts(call, &job->own_parts)) {
    job->packs = false;
    return false;
  }
  job->wire = output;
  return true;
}

// Gives the job its image if it needs one and has none. Returns false if there
// is no room for it until others are given back. If there can be none, the job
// is staged.
bool StagedCollective::AdmitImage(StagedJob* job) {
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
Result<std::uint32_t*> StagedCollective::NonfiniteWord(const StagedJob& job) {
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

// Gives the job its staging memory if there is room for it.
Status StagedCollective::Admit(StagedJob* job) {
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

void StagedCollective::GiveImage(StagedJob* job) {
  const std::byte* const image = std::exchange(job->image, nullptr);
  if (image == nullptr) return;
  images_[static_cast<std::size_t>(job->call.channel)].Give(image);
}

void StagedCollective::TellOnce(const std::string& what, const Status& why) {
  if (why.ok() || args_.logger == nullptr || !told_.insert(what).second) return;
  args_.logger->Log(LogLevel::kWarning, StrCat(what, ": ", why.message()));
}

CollectiveCall StagedCollective::InnerCall(StagedJob* job) const {
  CollectiveCall inner = job->call;
  if (job->input.count > 0) inner.input = job->input.host;
  if (job->output.count > 0) {
    inner.output = job->output.host;
    // The copy back converts, so it also unscales.
    if (inner.dtype != inner.wire) inner.keep_scaled = true;
    inner.dtype = inner.wire;
    if (inner.place == 0) inner.place = HashOf(inner.extents);
    inner.extents.clear();
  }
  if (job->way == Way::kFed) inner.feed = job;
  if (job->direct) {
    inner.direct = job->wire.device.Contiguous(0, job->wire.count);
  }
  return inner;
}

}  // namespace gradientflow
