#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "gradientflow/config/options.h"

// Values as people write them. A parser takes the whole text, without blanks or
// trailing characters, or returns nothing. Printing a value and parsing it
// again gives the same value.
namespace gradientflow {

// Decimal, without a sign.
std::optional<std::uint64_t> ParseUnsigned(std::string_view text);

// Finite numbers only: no "nan", no "inf", nothing out of the type's range.
std::optional<double> ParseDouble(std::string_view text);
std::optional<float> ParseFloat(std::string_view text);
std::string PrintDouble(double value);
std::string PrintFloat(float value);

// on/off, true/false, yes/no or 1/0, in any case.
std::optional<bool> ParseBool(std::string_view text);

// "4096", "64KB", "64KiB", "64K", "16MB", "1GB", "2TB", in any case. All are
// binary multiples: 64KB is 65536. Also "auto" (kAutoBytes) and "inf"
// (kInfiniteBytes). Returns nothing for sizes that collide with these two.
std::optional<std::size_t> ParseBytes(std::string_view text);
// Prints in the largest unit that divides the value: "256KB", "4097".
std::string PrintBytes(std::size_t bytes);

// ASCII only, independent of the locale.
std::string Lower(std::string_view text);
std::string Upper(std::string_view text);

// FNV-1a: the same on every machine.
std::uint64_t HashText(std::string_view text);

// Returns the number of single-character edits (insert, delete, replace) from
// `a` to `b`.
std::size_t EditDistance(std::string_view a, std::string_view b);

// Checks the syntax only and looks nothing up: "host:port" or "[ipv6]:port"
// with a port in 1..65535, or "file:///directory".
bool IsRendezvous(std::string_view text);

}  // namespace gradientflow
