#include "gradientflow/nccl/nccl_api.h"

#include <dlfcn.h>

#include <utility>
#include <vector>

#include "gradientflow/base/str_cat.h"
#include "gradientflow/base/symbols.h"

namespace gradientflow {
namespace {

// The first version that has non-blocking communicators that can be aborted
// while they begin, and the layout of nccl::Config.
constexpr int kOldest = 21800;
constexpr int kTooNew = 30000;  // Another major version has another interface.
constexpr int kWindowsSince = 22700;
constexpr int kShrinkSince = 22700;
constexpr int kRevokeSince = 22807;
constexpr int kGrowSince = 22900;

Status Unusable(const std::string& what) {
  return Status(StatusCode::kUnimplemented, StrCat("NCCL: ", what));
}

Result<void*> Open(const std::string& path, std::string* found) {
  std::vector<std::string> names = {"libnccl.so.2", "libnccl.so"};
  if (!path.empty()) names = {path};
  std::string tried;
  for (const std::string& name : names) {
    if (void* library = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) {
      *found = name;
      return library;
    }
    const char* why = ::dlerror();
    tried += StrCat(tried.empty() ? "" : "; ", name, ": ",
                    why != nullptr ? why : "no reason given");
  }
  return Unusable(StrCat("the library cannot be loaded (", tried, ")"));
}

void FindAll(Symbols* symbols, NcclApi* api) {
  Symbols& s = *symbols;
  s.Required("ncclGetUniqueId", &api->get_unique_id);
  s.Required("ncclCommInitRankConfig", &api->comm_init_rank_config);
  s.Required("ncclCommFinalize", &api->comm_finalize);
  s.Required("ncclCommDestroy", &api->comm_destroy);
  s.Required("ncclCommAbort", &api->comm_abort);
  s.Required("ncclCommGetAsyncError", &api->comm_get_async_error);
  s.Required("ncclCommCuDevice", &api->comm_cu_device);
  s.Required("ncclGetErrorString", &api->get_error_string);
  s.Required("ncclGetLastError", &api->get_last_error);
  s.Optional("ncclCommRegister", &api->comm_register);
  s.Optional("ncclCommDeregister", &api->comm_deregister);
  s.Required("ncclRedOpCreatePreMulSum", &api->red_op_create_pre_mul_sum);
  s.Required("ncclRedOpDestroy", &api->red_op_destroy);
  s.Required("ncclAllReduce", &api->all_reduce);
  s.Required("ncclBroadcast", &api->broadcast);
  s.Required("ncclReduce", &api->reduce);
  s.Required("ncclAllGather", &api->all_gather);
  s.Required("ncclReduceScatter", &api->reduce_scatter);
  s.Required("ncclSend", &api->send);
  s.Required("ncclRecv", &api->recv);
  s.Required("ncclGroupStart", &api->group_start);
  s.Required("ncclGroupEnd", &api->group_end);
  if (api->comm_deregister == nullptr) api->comm_register = nullptr;
}

void FindMemory(Symbols* symbols, NcclApi* api) {
  Symbols& s = *symbols;
  s.Optional("ncclMemAlloc", &api->mem_alloc);
  s.Optional("ncclMemFree", &api->mem_free);
  if (api->mem_free == nullptr) api->mem_alloc = nullptr;
  if (api->version < kWindowsSince) return;
  s.Optional("ncclCommWindowRegister", &api->comm_window_register);
  s.Optional("ncclCommWindowDeregister", &api->comm_window_deregister);
  if (api->comm_window_deregister == nullptr) {
    api->comm_window_register = nullptr;
  }
}

// A function of another version could have other parameters.
void FindElastic(Symbols* symbols, NcclApi* api) {
  Symbols& s = *symbols;
  if (api->version >= kShrinkSince) {
    s.Optional("ncclCommShrink", &api->comm_shrink);
  }
  if (api->version >= kRevokeSince) {
    s.Optional("ncclCommRevoke", &api->comm_revoke);
  }
  if (api->version < kGrowSince) return;
  s.Optional("ncclCommGrow", &api->comm_grow);
  s.Optional("ncclCommGetUniqueId", &api->comm_get_unique_id);
  if (api->comm_get_unique_id == nullptr) api->comm_grow = nullptr;
}

// Returns the name of the file that contains `function`, if the loader knows.
std::string FileOf(void* function, const std::string& otherwise) {
  Dl_info info = {};
  const bool known = ::dladdr(function, &info) != 0;
  return known && info.dli_fname != nullptr ? info.dli_fname : otherwise;
}

}  // namespace

std::string NcclVersionText(int version) {
  // Versions up to 2.8 have one digit less for the minor version.
  const int major = version < 10000 ? version / 1000 : version / 10000;
  const int rest = version < 10000 ? version % 1000 : version % 10000;
  return StrCat(major, ".", rest / 100, ".", rest % 100);
}

Result<std::shared_ptr<const NcclApi>> LoadNccl(const std::string& path) {
  auto api = std::make_shared<NcclApi>();
  Result<void*> library = Open(path, &api->path);
  if (!library.ok()) return library.status();
  Symbols symbols(library.value());
  symbols.Required("ncclGetVersion", &api->get_version);
  if (api->get_version == nullptr) {
    return Unusable(StrCat(api->path, " has no ncclGetVersion"));
  }
  api->path = FileOf(reinterpret_cast<void*>(api->get_version), api->path);
  if (api->get_version(&api->version) != nccl::ReturnCode::kSuccess) {
    return Unusable(StrCat(api->path, " does not tell its version"));
  }
  if (api->version < kOldest || api->version >= kTooNew) {
    return Unusable(StrCat(api->path, " is version ",
                           NcclVersionText(api->version), ", expected ",
                           NcclVersionText(kOldest), " or a newer 2.x"));
  }
  FindAll(&symbols, api.get());
  FindMemory(&symbols, api.get());
  FindElastic(&symbols, api.get());
  if (!symbols.missing().empty()) {
    return Unusable(StrCat(api->path, ", version ",
                           NcclVersionText(api->version), ", lacks ",
                           symbols.missing()));
  }
  return std::shared_ptr<const NcclApi>(std::move(api));
}

}  // namespace gradientflow
