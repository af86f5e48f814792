#include "tests/transports/no_locks.h"

#include <dlfcn.h>
#include <fcntl.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>

namespace {

std::atomic<bool> no_locks = false;

}  // namespace

extern "C" int fcntl(int fd, int command, ...) {
  std::va_list list;
  va_start(list, command);
  void* const argument = va_arg(list, void*);
  va_end(list);
  if (no_locks && (command == F_OFD_SETLK || command == F_OFD_GETLK)) {
    errno = ENOLCK;
    return -1;
  }
  using Fcntl = int (*)(int, int, ...);
  static const auto real = reinterpret_cast<Fcntl>(::dlsym(RTLD_NEXT, "fcntl"));
  return real(fd, command, argument);
}

namespace gradientflow::testing {

NoLocks::NoLocks() { no_locks = true; }
NoLocks::~NoLocks() { no_locks = false; }

}  // namespace gradientflow::testing
