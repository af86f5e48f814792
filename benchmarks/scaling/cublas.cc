#include <dlfcn.h>

#include <string>
#include <utility>

#include "benchmarks/scaling/blas.h"
#include "gradientflow/base/str_cat.h"

namespace gradientflow::benchmarks {
namespace {

// Newest first; all have cublasGemmEx with a compute type (since 11).
constexpr const char* kNames[] = {"libcublas.so.13", "libcublas.so.12",
                                  "libcublas.so.11", "libcublas.so"};

// What is used of cuBLAS, with its numbers.
using Handle = void*;
constexpr int kSuccess = 0;
constexpr int kNotTransposed = 0;  // CUBLAS_OP_N
constexpr int kFloat16 = 2;        // CUDA_R_16F
constexpr int kInFloat32 = 68;     // CUBLAS_COMPUTE_32F
constexpr int kDefault = -1;       // CUBLAS_GEMM_DEFAULT

struct Functions {
  int (*create)(Handle* handle) = nullptr;
  int (*destroy)(Handle handle) = nullptr;
  int (*set_stream)(Handle handle, void* stream) = nullptr;
  int (*gemm)(Handle handle, int trans_a, int trans_b, int m, int n, int k,
              const void* alpha, const void* a, int a_type, int lda,
              const void* b, int b_type, int ldb, const void* beta, void* c,
              int c_type, int ldc, int compute_type, int algorithm) = nullptr;
};

Status Failed(const char* function, int code) {
  return Status(StatusCode::kInternal,
                StrCat("cuBLAS: ", function, " failed with status ", code));
}

class Cublas final : public Blas {
 public:
  Cublas(const Functions& functions, Handle handle)
      : functions_(functions), handle_(handle) {}
  ~Cublas() override { functions_.destroy(handle_); }
  Cublas(const Cublas&) = delete;
  Cublas& operator=(const Cublas&) = delete;

  Status Multiply(const Gemm& gemm, const GemmOperands& operands) override {
    const float one = 1;
    const float zero = 0;
    const int code = functions_.gemm(
        handle_, kNotTransposed, kNotTransposed, gemm.m, gemm.n, gemm.k, &one,
        operands.a, kFloat16, gemm.m, operands.b, kFloat16, gemm.k, &zero,
        operands.c, kFloat16, gemm.m, kInFloat32, kDefault);
    return code == kSuccess ? Status() : Failed("cublasGemmEx", code);
  }

 private:
  const Functions functions_;
  const Handle handle_;
};

template <typename Function>
Status Find(void* library, const char* name, Function** function) {
  *function = reinterpret_cast<Function*>(::dlsym(library, name));
  if (*function != nullptr) return Status();
  return Status(StatusCode::kUnimplemented,
                StrCat("cuBLAS: the library lacks ", name));
}

// The library stays loaded: it has threads and memory of its own.
Result<void*> Load() {
  std::string tried;
  for (const char* name : kNames) {
    if (void* library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL)) return library;
    const char* why = ::dlerror();
    tried += StrCat(tried.empty() ? "" : "; ", why != nullptr ? why : name);
  }
  return Status(StatusCode::kUnimplemented,
                StrCat("cuBLAS: the library cannot be loaded (", tried,
                       "); put its folder on LD_LIBRARY_PATH"));
}

}  // namespace

Result<std::unique_ptr<Blas>> OpenCublas(void* stream) {
  const Result<void*> library = Load();
  if (!library.ok()) return library.status();
  Functions f;
  GF_RETURN_IF_ERROR(Find(library.value(), "cublasCreate_v2", &f.create));
  GF_RETURN_IF_ERROR(Find(library.value(), "cublasDestroy_v2", &f.destroy));
  GF_RETURN_IF_ERROR(
      Find(library.value(), "cublasSetStream_v2", &f.set_stream));
  GF_RETURN_IF_ERROR(Find(library.value(), "cublasGemmEx", &f.gemm));
  Handle handle = nullptr;
  int code = f.create(&handle);
  if (code != kSuccess) return Failed("cublasCreate", code);
  std::unique_ptr<Blas> blas = std::make_unique<Cublas>(f, handle);
  code = f.set_stream(handle, stream);
  if (code != kSuccess) return Failed("cublasSetStream", code);
  return blas;
}

}  // namespace gradientflow::benchmarks
