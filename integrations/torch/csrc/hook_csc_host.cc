#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "hook_csc_ops.h"
#include "library.h"

namespace gft {
namespace {

std::byte* At(const at::Tensor& tensor, int64_t element) {
  return static_cast<std::byte*>(tensor.mutable_data_ptr()) +
         element * static_cast<int64_t>(tensor.element_size());
}

void ConvertRange(const at::Tensor& src, int64_t from, const at::Tensor& dst,
                  int64_t to, int64_t count, double scale) {
  Check(gf_convert(At(src, from), *DtypeOf(src.scalar_type()), At(dst, to),
                   *DtypeOf(dst.scalar_type()), static_cast<size_t>(count),
                   static_cast<float>(scale)),
        "converting a chunk");
}

// One chunk through gf_csc_residual(); returns the norm of the sum.
float AddResidual(CscBucket& bucket, size_t c) {
  const auto count = static_cast<size_t>(bucket.chunk_count(c));
  const int64_t begin = bucket.chunk_begin(c);
  float norm = 0.0F;
  Check(gf_csc_residual(At(bucket.buffer, begin), *DtypeOf(bucket.type),
                        bucket.residual.mutable_data_ptr<float>() + begin,
                        count, count, &bucket.selected[c], /*zero_kept=*/1,
                        /*keep_factor=*/1.0F, &norm),
        "adding the residual");
  return norm;
}

void KeepFinite(float* residual, int64_t count) {
  std::replace_if(
      residual, residual + count, [](float v) { return !std::isfinite(v); },
      0.0F);
}

class HostOps final : public CscOps {
 public:
  void Pack(CscBucket& bucket, at::ScalarType wire,
            double scale) const override {
    PreparePacked(bucket, wire);
    bucket.norms = at::zeros({static_cast<int64_t>(bucket.chunks())});
    auto* norms = bucket.norms.mutable_data_ptr<float>();
    auto* residual = bucket.residual.mutable_data_ptr<float>();
    std::vector<float> marks;
    int64_t end = 0;
    // Chunk by chunk, so that the second pass finds it in cache.
    for (size_t c = 0; c < bucket.chunks(); ++c) {
      const int64_t begin = bucket.chunk_begin(c);
      const int64_t count = bucket.chunk_count(c);
      if (bucket.selected[c] != 0) {
        if (bucket.dirty[c] != 0) AddResidual(bucket, c);
        // A type of 16 bits leaves what its rounding took.
        if (bucket.type == at::kFloat) bucket.dirty[c] = 0;
        ConvertRange(bucket.buffer, begin, bucket.packed, end, count, scale);
        end += count;
        continue;
      }
      norms[c] = AddResidual(bucket, c);
      bucket.dirty[c] = norms[c] != 0.0F ? 1 : 0;
      const bool finite = std::isfinite(norms[c]);
      marks.push_back(finite ? 0.0F : std::numeric_limits<float>::quiet_NaN());
      if (!finite) KeepFinite(residual + begin, count);
    }
    const at::Tensor marks_tensor = at::from_blob(
        marks.data(), {static_cast<int64_t>(marks.size())}, at::kFloat);
    bucket.packed.narrow(0, end, marks_tensor.numel()).copy_(marks_tensor);
  }

  void Unpack(CscBucket& bucket) const override {
    auto* norms = bucket.norms.mutable_data_ptr<float>();
    bool bad = false;
    int64_t end = 0;
    int64_t mark = 0;
    const at::Tensor marks = Marks(bucket);
    for (size_t c = 0; c < bucket.chunks(); ++c) {
      const int64_t begin = bucket.chunk_begin(c);
      const int64_t count = bucket.chunk_count(c);
      if (bucket.selected[c] != 0) {
        ConvertRange(bucket.packed, end, bucket.buffer, begin, count, 1.0);
        Check(
            gf_csc_norms(At(bucket.buffer, begin), *DtypeOf(bucket.type),
                         static_cast<size_t>(count), static_cast<size_t>(count),
                         nullptr, 1.0F, &norms[c]),
            "taking norms");
        bad = bad || !std::isfinite(norms[c]);
        end += count;
      } else if (!std::isfinite(marks.const_data_ptr<float>()[mark++])) {
        bucket.buffer.narrow(0, begin, count)
            .fill_(std::numeric_limits<float>::quiet_NaN());
        bad = true;
      }
    }
    bucket.bad = at::scalar_tensor(bad, at::kBool);
  }

  void TakeBack(CscBucket& bucket, const at::Tensor& bad) const override {
    if (!bad.item<bool>()) return;
    auto* residual = bucket.residual.mutable_data_ptr<float>();
    for (size_t c = 0; c < bucket.chunks(); ++c) {
      if (bucket.selected[c] == 0) continue;
      const int64_t begin = bucket.chunk_begin(c);
      const int64_t count = bucket.chunk_count(c);
      bucket.residual.narrow(0, begin, count)
          .add_(bucket.buffer.narrow(0, begin, count)
                    .to(at::kFloat)
                    .nan_to_num(0.0, 0.0, 0.0));
      KeepFinite(residual + begin, count);
      bucket.dirty[c] = 1;
    }
  }

 private:
  static at::Tensor Marks(const CscBucket& bucket) {
    const int64_t count =
        std::count(bucket.selected.begin(), bucket.selected.end(), 0);
    return bucket.packed.narrow(0, bucket.packed.numel() - count, count)
        .to(at::kFloat)
        .contiguous();
  }
};

}  // namespace

const CscOps& CscOps::OnHost() {
  static const HostOps ops;
  return ops;
}

int64_t PackedElements(const CscBucket& bucket) {
  int64_t elements = 0;
  for (size_t c = 0; c < bucket.chunks(); ++c) {
    elements += bucket.selected[c] != 0 ? bucket.chunk_count(c) : 1;
  }
  return elements;
}

void PreparePacked(CscBucket& bucket, at::ScalarType wire) {
  const int64_t elements = PackedElements(bucket);
  at::Tensor& storage = bucket.packed_storage;
  if (!storage.defined() || storage.numel() < elements ||
      storage.scalar_type() != wire) {
    storage = at::empty({elements}, bucket.buffer.options().dtype(wire));
  }
  bucket.packed = storage.narrow(0, 0, elements);
}

}  // namespace gft
