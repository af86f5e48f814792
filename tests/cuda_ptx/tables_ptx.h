#pragma once

// What a program with the tables of tables_ptx.cc says of itself.
namespace gradientflow::cuda_ptx {

// Whether each case runs once, and the architectures take turns at the launches
// of each kernel. Else each case runs once for every architecture whose code
// differs.
bool ArchitecturesTakeTurns();

}  // namespace gradientflow::cuda_ptx
