#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "gradientflow/base/status.h"
#include "gradientflow/nccl/abi.h"

namespace gradientflow {

// The functions of a loaded libnccl; `stream` is a cudaStream_t. NCCL's manual
// describes them. A value: tests put functions of their own in their place.
struct NcclApi {
  using Code = nccl::ReturnCode;
  using Comm = nccl::Comm;

  std::string path;  // As it was found.
  int version = 0;   // 22809 is 2.28.9.

  Code (*get_version)(int* version) = nullptr;
  Code (*get_unique_id)(nccl::UniqueId* id) = nullptr;
  Code (*comm_init_rank_config)(Comm* comm, int size, nccl::UniqueId id,
                                int rank, nccl::Config* config) = nullptr;
  Code (*comm_finalize)(Comm comm) = nullptr;
  Code (*comm_destroy)(Comm comm) = nullptr;
  Code (*comm_abort)(Comm comm) = nullptr;
  Code (*comm_get_async_error)(Comm comm, Code* error) = nullptr;
  Code (*comm_cu_device)(Comm comm, int* device) = nullptr;
  const char* (*get_error_string)(Code code) = nullptr;
  const char* (*get_last_error)(Comm comm) = nullptr;
  // Null if the library has none (before 2.19).
  Code (*comm_register)(Comm comm, void* data, std::size_t bytes,
                        void** handle) = nullptr;
  Code (*comm_deregister)(Comm comm, void* handle) = nullptr;

  // Memory to which NCCL maps that of other ranks. Null before 2.19.
  Code (*mem_alloc)(void** data, std::size_t bytes) = nullptr;
  Code (*mem_free)(void* data) = nullptr;
  // Null before 2.27.
  Code (*comm_window_register)(Comm comm, void* data, std::size_t bytes,
                               nccl::Window* window, int flags) = nullptr;
  Code (*comm_window_deregister)(Comm comm, nccl::Window window) = nullptr;

  // For jobs whose members change. Each is null if the library is older.
  Code (*comm_revoke)(Comm comm, int flags) = nullptr;  // 2.28.7
  Code (*comm_shrink)(Comm comm, int* excluded, int count, Comm* made,
                      nccl::Config* config, int flags) = nullptr;  // 2.27
  Code (*comm_grow)(Comm comm, int size, const nccl::UniqueId* id, int rank,
                    Comm* made, nccl::Config* config) = nullptr;        // 2.29
  Code (*comm_get_unique_id)(Comm comm, nccl::UniqueId* id) = nullptr;  // 2.29

  Code (*red_op_create_pre_mul_sum)(nccl::RedOp* op, void* scalar,
                                    nccl::DataType type,
                                    nccl::ScalarResidence residence,
                                    Comm comm) = nullptr;
  Code (*red_op_destroy)(nccl::RedOp op, Comm comm) = nullptr;

  Code (*all_reduce)(const void* send, void* recv, std::size_t count,
                     nccl::DataType type, nccl::RedOp op, Comm comm,
                     void* stream) = nullptr;
  Code (*broadcast)(const void* send, void* recv, std::size_t count,
                    nccl::DataType type, int root, Comm comm,
                    void* stream) = nullptr;
  Code (*reduce)(const void* send, void* recv, std::size_t count,
                 nccl::DataType type, nccl::RedOp op, int root, Comm comm,
                 void* stream) = nullptr;
  Code (*all_gather)(const void* send, void* recv, std::size_t send_count,
                     nccl::DataType type, Comm comm, void* stream) = nullptr;
  Code (*reduce_scatter)(const void* send, void* recv, std::size_t recv_count,
                         nccl::DataType type, nccl::RedOp op, Comm comm,
                         void* stream) = nullptr;
  Code (*send)(const void* data, std::size_t count, nccl::DataType type,
               int peer, Comm comm, void* stream) = nullptr;
  Code (*recv)(void* data, std::size_t count, nccl::DataType type, int peer,
               Comm comm, void* stream) = nullptr;
  Code (*group_start)() = nullptr;
  Code (*group_end)() = nullptr;
};

// Loads `path` or, if it is empty, libnccl.so.2 or libnccl.so from where the
// loader looks. The library stays loaded for the life of the process, because
// it has threads of its own. Thread-safe.
// Returns kUnimplemented if there is no library (with the names tried and the
// loader's reasons), if it is too old or too new, or if it lacks a function.
Result<std::shared_ptr<const NcclApi>> LoadNccl(const std::string& path);

// Returns a text like "2.28.9".
std::string NcclVersionText(int version);

}  // namespace gradientflow
