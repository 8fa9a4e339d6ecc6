#include "comm/functional/attributes.h"

#include "base/check.h"

namespace tutti::fn {
namespace {

const Collective& of(const void* p) { return *static_cast<const Collective*>(p); }

// The place is for errors only: calls of two places are the same.
auto tied(const Collective& a) {
  return std::tie(a.group, a.op, a.factor, a.weight, a.order, a.root, a.shapes, a.rows, a.input_rows, a.timeout, a.own);
}

std::string print(const void* p) {
  const Collective& a = of(p);
  std::string text = fmt::format("group={}, op={}, root={}", to_string(a.group), static_cast<int>(a.op), a.root);
  if (a.factor) text += fmt::format(", factor={}", *a.factor);
  if (a.order != Order::canonical) text += ", order=fastest";
  if (a.weight) text += fmt::format(", weight={}", *a.weight);
  if (!a.rows.empty()) text += fmt::format(", rows={}", a.rows);
  if (!a.input_rows.empty()) text += fmt::format(", input_rows={}", a.input_rows);
  for (const Shape& s : a.shapes) text += fmt::format(", {}", s);
  return text;
}

constexpr AttributeType kType{
    .size = sizeof(Collective),
    .align = alignof(Collective),
    .copy = [](void* to, const void* from) { new (to) Collective(of(from)); },
    .destroy = [](void* p) { static_cast<Collective*>(p)->~Collective(); },
    .equal = [](const void* a, const void* b) { return tied(of(a)) == tied(of(b)); },
    .hash = [](const void* p) { return std::hash<std::string>()(print(p)); },
    .print = print,
};

}  // namespace

Attributes attributes(const Collective& a) { return {&a, &kType}; }

}  // namespace tutti::fn
