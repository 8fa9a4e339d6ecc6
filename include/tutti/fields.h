// TUTTI_FIELDS names the data members of a struct once. From it come comparison, hashing, printing, copying and
// visiting: of an operator's attributes here, of a module's parameters and children in nn.
#pragma once

#include <tuple>

#define TUTTI_FIELDS(...)                               \
  auto fields() { return std::tie(__VA_ARGS__); }       \
  auto fields() const { return std::tie(__VA_ARGS__); } \
  static const char* field_names() { return #__VA_ARGS__; }
