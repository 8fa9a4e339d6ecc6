// Note [Generated kernels]
// A kernel is a loop over rows around a loop over a row, of as many elements a step as a register holds. Values are
// held as eager would hold them between two operators: floats, doubles, 64-bit integers, truths; those of narrower
// dtypes are rounded after each operator as storing them would, so that nothing but the memory traffic differs from
// eager; but for graphs that are not exact, where they are rounded only when they are stored. Each step loads its
// inputs, calls primitives (which are inlined) and stores its outputs; the last of a row is masked. Numbers are
// operands too: other numbers need no other code.
#include "graph/backends/native/kernel.h"

#include <fmt/format.h>

#include <map>

#include "base/check.h"
#include "base/sha256.h"

namespace tutti::graph::native {
namespace {

using pointwise::Kind;

// What a value is in registers.
enum class Form { f32, f64, i64, truth };

Form form_of(DType t) {
  if (t == DType::boolean) return Form::truth;
  if (!is_floating(t)) return Form::i64;
  return t == DType::f64 ? Form::f64 : Form::f32;
}
Form form_of(Kind kind) { return kind == Kind::f32 ? Form::f32 : kind == Kind::f64 ? Form::f64 : Form::i64; }
const char* element(Form f) {
  constexpr const char* names[] = {"float", "double", "i64", "i1"};
  return names[static_cast<int>(f)];
}
// In memory, as a type and as a part of an intrinsic's name.
const char* stored(DType t) {
  constexpr const char* integers[] = {"", "i8", "i16", "", "i32", "", "", "", "i64"};
  return t == DType::f32 ? "float" : t == DType::f64 ? "double" : t == DType::f16 ? "half" : integers[size_of(t)];
}
const char* short_name(DType t) {
  return t == DType::f32 ? "f32" : t == DType::f64 ? "f64" : t == DType::f16 ? "f16" : stored(t);
}

struct Held {
  std::string name;
  Form form;
};

class Writer {
 public:
  Writer(const Graph& graph, const Recipe& recipe, const Loop& loop, Isa isa)
      : graph_(graph), recipe_(recipe), loop_(loop), isa_(isa) {
    int registers = isa == Isa::v4 ? 64 : isa == Isa::v3 ? 32 : 16;
    bool narrow = false;
    for (const auto& step : recipe.steps) narrow = narrow || step.formula.function.ends_with("_f32");
    lanes_ = registers / (narrow ? 4 : 8);
    wide_ = registers / 8;
  }

  Kernel write() {
    function();
    Kernel k;
    static constexpr char digits[] = "0123456789abcdef";
    k.name = "tutti_kernel_";
    Digest digest = sha256(text_);
    for (size_t i = 0; i < 12; ++i) k.name += {digits[digest[i] >> 4], digits[digest[i] & 15]};
    k.text = fmt::format("define void @{}{}", k.name, text_);
    k.declarations = std::move(declarations_);
    return k;
  }

 private:
  // ---- Lines

  template <class... Args>
  void line(fmt::format_string<Args...> format, Args&&... args) {
    text_ += "  ";
    fmt::format_to(std::back_inserter(text_), format, std::forward<Args>(args)...);
    text_ += '\n';
  }
  template <class... Args>
  std::string let(fmt::format_string<Args...> format, Args&&... args) {
    std::string name = fmt::format("%{}", next_++);
    line("{} = {}", name, fmt::format(format, std::forward<Args>(args)...));
    return name;
  }
  void label(const char* name) { text_ += fmt::format("{}:\n", name); }
  std::string vector(const char* element, int lanes) const { return fmt::format("<{} x {}>", lanes, element); }
  std::string vector(Form f) const { return vector(element(f), lanes_); }
  void declare(std::string declaration) { declarations_.insert("declare " + std::move(declaration)); }

  // ---- The loops

  size_t operands() const { return recipe_.inputs.size() + recipe_.outputs.size(); }
  const Type& type(size_t k) const {
    return graph_.type(k < recipe_.inputs.size() ? recipe_.inputs[k] : recipe_.outputs[k - recipe_.inputs.size()]);
  }

  void function() {
    text_ +=
        "(ptr noalias nocapture readonly %operands, ptr noalias nocapture readonly %strides, i64 %rows, i64 %count) ";
    // Such kernels have other names too, since they are called by their text.
    text_ += graph_.exact ? "{\n" : "\"tutti-inexact\" {\n";
    label("entry");
    if (isa_ != Isa::v4)
      for (size_t k = 0; k < operands(); ++k)
        line("%t{} = alloca {}, align 64", k, vector(stored(type(k).dtype), lanes_));
    for (size_t k = 0; k < operands(); ++k) {
      line("%p{0} = getelementptr ptr, ptr %operands, i64 {0}", k);
      line("%o{0} = load ptr, ptr %p{0}", k);
      line("%q{0} = getelementptr i64, ptr %strides, i64 {0}", k);
      line("%s{0} = load i64, ptr %q{0}", k);
    }
    // Where a masked step costs as much as another, all are masked, and there is half the code to compile.
    bool masked = isa_ == Isa::v4 && !loop_.is_streamed();
    if (!masked) line("%whole = and i64 %count, {}", -lanes_);
    line("br label %row");
    label("row");
    line("%r = phi i64 [0, %entry], [%r.next, %row.end]");
    for (size_t k = 0; k < operands(); ++k) line("%x{0} = phi ptr [%o{0}, %entry], [%x{0}.next, %row.end]", k);
    for (size_t k = 0; k < recipe_.inputs.size(); ++k)
      if (loop_.is_repeated(k)) repeated_[k] = load_repeated(k);
    masked ? masked_row() : row_with_rest();
    label("row.end");
    line("%r.next = add i64 %r, 1");
    for (size_t k = 0; k < operands(); ++k) line("%x{0}.next = getelementptr i8, ptr %x{0}, i64 %s{0}", k);
    line("%r.more = icmp slt i64 %r.next, %rows");
    line("br i1 %r.more, label %row, label %done");
    label("done");
    line("ret void");
    text_ += "}\n";
  }

  void masked_row() {
    line("br label %step");
    label("step");
    line("%i = phi i64 [0, %row], [%i.next, %step]");
    line("%rest = sub i64 %count, %i");
    step("%i", mask("%rest"));
    line("%i.next = add i64 %i, {}", lanes_);
    line("%i.more = icmp slt i64 %i.next, %count");
    line("br i1 %i.more, label %step, label %row.end");
  }

  void row_with_rest() {
    line("%some = icmp sgt i64 %whole, 0");
    line("br i1 %some, label %step, label %end");
    label("step");
    line("%i = phi i64 [0, %row], [%i.next, %step]");
    step("%i", "");
    line("%i.next = add i64 %i, {}", lanes_);
    line("%i.more = icmp slt i64 %i.next, %whole");
    line("br i1 %i.more, label %step, label %end");
    label("end");
    line("%rest = sub i64 %count, %whole");
    line("%any = icmp sgt i64 %rest, 0");
    line("br i1 %any, label %last, label %row.end");
    label("last");
    isa_ == Isa::v4 ? step("%whole", mask("%rest")) : copied_step();
    line("br label %row.end");
  }

  // The rest of a row where few loads and stores can be masked: by way of memory that has room for a whole step.
  void copied_step() {
    declare("void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)");
    auto copy = [&](size_t k, bool out) {
      std::string bytes = let("mul i64 %rest, {}", size_of(type(k).dtype)), at = address(k, "%whole");
      std::string tile = fmt::format("%t{}", k);
      line("call void @llvm.memcpy.p0.p0.i64(ptr {}, ptr {}, i64 {}, i1 false)", out ? at : tile, out ? tile : at,
           bytes);
    };
    for (size_t k = 0; k < recipe_.inputs.size(); ++k) {
      if (loop_.is_repeated(k)) continue;
      line("store {0} zeroinitializer, ptr %t{1}", vector(stored(type(k).dtype), lanes_), k);
      copy(k, false);
    }
    row_ = "t";
    step("0", "");
    row_ = "x";
    for (size_t k = recipe_.inputs.size(); k < operands(); ++k) copy(k, true);
  }

  std::string mask(const char* rest) {
    std::string numbers;
    for (int i = 0; i < lanes_; ++i) numbers += fmt::format("{}i32 {}", i ? ", " : "", i);
    declare("i64 @llvm.smin.i64(i64, i64)");
    std::string few = let("call i64 @llvm.smin.i64(i64 {}, i64 {})", rest, lanes_);
    std::string count = splat("i32", let("trunc i64 {} to i32", few));
    return let("icmp slt {} <{}>, {}", vector("i32", lanes_), numbers, count);
  }

  std::string splat(const char* element, const std::string& scalar) {
    std::string type = vector(element, lanes_);
    std::string first = let("insertelement {} poison, {} {}, i64 0", type, element, scalar);
    return let("shufflevector {0} {1}, {0} poison, {2} zeroinitializer", type, first, vector("i32", lanes_));
  }

  void step(const std::string& index, const std::string& mask) {
    held_.clear();
    for (size_t k = 0; k < recipe_.inputs.size(); ++k)
      held_[recipe_.inputs[k]] = loop_.is_repeated(k) ? repeated_[k] : load(k, index, mask);
    for (const auto& s : recipe_.steps) held_[s.value] = compute(s);
    for (size_t k = 0; k < recipe_.outputs.size(); ++k) store(recipe_.inputs.size() + k, index, mask);
  }

  // ---- Memory

  std::string address(size_t k, const std::string& index) {
    return let("getelementptr {}, ptr %{}{}, i64 {}", stored(type(k).dtype), row_, k, index);
  }

  Held load(size_t k, const std::string& index, const std::string& mask) {
    DType t = type(k).dtype;
    std::string at = address(k, index), memory = vector(stored(t), lanes_);
    if (mask.empty()) return hold(t, let("load {}, ptr {}, align {}", memory, at, size_of(t)));
    std::string name = fmt::format("@llvm.masked.load.v{}{}.p0", lanes_, short_name(t));
    declare(fmt::format("{0} {1}(ptr, i32, {2}, {0})", memory, name, vector("i1", lanes_)));
    return hold(t, let("call {0} {1}(ptr {2}, i32 {3}, {4} {5}, {0} zeroinitializer)", memory, name, at, size_of(t),
                       vector("i1", lanes_), mask));
  }
  Held load_repeated(size_t k) {
    DType t = type(k).dtype;
    return hold(t, splat(stored(t), let("load {}, ptr %x{}, align {}", stored(t), k, size_of(t))));
  }
  // What was loaded, in registers' form.
  Held hold(DType t, std::string v) {
    std::string memory = vector(stored(t), lanes_);
    Form form = form_of(t);
    if (t == DType::boolean) {
      v = let("icmp ne {} {}, zeroinitializer", memory, v);
    } else if (t == DType::bf16) {
      std::string ints = vector("i32", lanes_);
      v = let("zext {} {} to {}", memory, v, ints);
      v = let("shl {} {}, {}", ints, v, splatted("i32", "16"));
      v = let("bitcast {} {} to {}", ints, v, vector(Form::f32));
    } else if (t == DType::f16) {
      v = let("fpext {} {} to {}", memory, v, vector(Form::f32));
    } else if (form == Form::i64 && size_of(t) < 8) {
      v = let("{} {} {} to {}", t == DType::u8 ? "zext" : "sext", memory, v, vector(Form::i64));
    }
    return {v, form};
  }

  void store(size_t k, const std::string& index, const std::string& mask) {
    DType t = type(k).dtype;
    std::string memory = vector(stored(t), lanes_);
    Held h = held_.at(recipe_.outputs[k - recipe_.inputs.size()]);
    std::string v = packed(t, graph_.exact ? h : rounded(t, h)), at = address(k, index);
    if (mask.empty() && loop_.is_streamed() && *row_ == 'x')
      return line("store {} {}, ptr {}, align {}, !nontemporal !0", memory, v, at,
                  size_of(t) * static_cast<size_t>(lanes_));
    if (mask.empty()) return line("store {} {}, ptr {}, align {}", memory, v, at, size_of(t));
    std::string name = fmt::format("@llvm.masked.store.v{}{}.p0", lanes_, short_name(t));
    declare(fmt::format("void {}({}, ptr, i32, {})", name, memory, vector("i1", lanes_)));
    line("call void {}({} {}, ptr {}, i32 {}, {} {})", name, memory, v, at, size_of(t), vector("i1", lanes_), mask);
  }
  // The bits that go to memory, of a value that has been rounded to its dtype.
  std::string packed(DType t, const Held& h) {
    std::string memory = vector(stored(t), lanes_), from = vector(h.form);
    if (t == DType::boolean) return let("zext {} {} to {}", from, h.name, memory);
    if (t == DType::f16) return let("fptrunc {} {} to {}", from, h.name, memory);
    if (t == DType::bf16) {
      std::string ints = vector("i32", lanes_), v = let("bitcast {} {} to {}", from, h.name, ints);
      return let("trunc {} {} to {}", ints, let("lshr {} {}, {}", ints, v, splatted("i32", "16")), memory);
    }
    if (h.form == Form::i64 && size_of(t) < 8) return let("trunc {} {} to {}", from, h.name, memory);
    return h.name;
  }
  std::string splatted(const char* type, const char* number) const { return splatted(type, number, lanes_); }
  static std::string splatted(const char* type, const char* number, int lanes) {
    std::string all;
    for (int i = 0; i < lanes; ++i) all += fmt::format("{}{} {}", i ? ", " : "", type, number);
    return "<" + all + ">";
  }

  // ---- Values

  Held compute(const Recipe::Step& s) {
    DType out = graph_.type(s.value).dtype;
    if (s.formula.function.empty()) {
      const Held& from = held_.at(s.formula.inputs[0]);
      return between(out, out == DType::boolean ? truth(from) : converted(from, form_of(out)));
    }
    Form form = form_of(s.formula.kind);
    std::vector<std::string> arguments;
    for (ValueId v : s.formula.inputs) arguments.push_back(converted(held_.at(v), form).name);
    Held result{call(s.formula.function, form, arguments), form};
    return between(out, out == DType::boolean ? truth(result) : result);
  }
  // As the next operator gets it.
  Held between(DType t, const Held& h) { return !graph_.exact && is_floating(t) ? h : rounded(t, h); }

  // The primitive on all lanes: as they are, or half of them at a time.
  std::string call(const std::string& function, Form form, const std::vector<std::string>& arguments) {
    int own = form == Form::f32 ? wide_ * 2 : wide_;
    std::string type = vector(element(form), own), list, types;
    for (size_t i = 0; i < arguments.size(); ++i) types += (i ? ", " : "") + type;
    declare(fmt::format("{} @tutti_{}({})", type, function, types));
    std::vector<std::string> parts;
    for (int from = 0; from < lanes_; from += own) {
      list.clear();
      for (const std::string& a : arguments)
        list += fmt::format("{}{} {}", list.empty() ? "" : ", ", type, own == lanes_ ? a : part(form, a, from, own));
      parts.push_back(let("call {} @tutti_{}({})", type, function, list));
    }
    if (parts.size() == 1) return parts[0];
    return let("shufflevector {0} {1}, {0} {2}, {3}", type, parts[0], parts[1], numbers(0, lanes_));
  }
  std::string part(Form form, const std::string& a, int from, int count) {
    return let("shufflevector {0} {1}, {0} poison, {2}", vector(form), a, numbers(from, count));
  }
  std::string numbers(int from, int count) const {
    std::string all;
    for (int i = 0; i < count; ++i) all += fmt::format("{}i32 {}", i ? ", " : "", from + i);
    return fmt::format("<{} x i32> <{}>", count, all);
  }

  Held truth(const Held& h) {
    if (h.form == Form::truth) return h;
    return {let("{} {} {}, zeroinitializer", h.form == Form::i64 ? "icmp ne" : "fcmp une", vector(h.form), h.name),
            Form::truth};
  }

  Held converted(const Held& h, Form to) {
    if (h.form == to) return h;
    const char* how = nullptr;
    if (h.form == Form::truth)
      how = to == Form::i64 ? "zext" : "uitofp";
    else if (h.form == Form::i64)
      how = "sitofp";
    else
      how = to == Form::f64 ? "fpext" : "fptrunc";
    TUTTI_ASSERT(to != Form::truth && (to != Form::i64 || h.form == Form::truth));
    return {let("{} {} {} to {}", how, vector(h.form), h.name, vector(to)), to};
  }

  // As storing and loading it would change it.
  Held rounded(DType t, const Held& h) {
    if (t == DType::f16) {
      std::string memory = vector("half", lanes_);
      std::string v = let("fptrunc {} {} to {}", vector(h.form), h.name, memory);
      return {let("fpext {} {} to {}", memory, v, vector(Form::f32)), Form::f32};
    }
    if (t == DType::bf16) return {round_to_bf16(h.name), Form::f32};
    if (h.form == Form::i64 && size_of(t) < 8) {
      std::string memory = vector(stored(t), lanes_), v = let("trunc {} {} to {}", vector(h.form), h.name, memory);
      return {let("{} {} {} to {}", t == DType::u8 ? "zext" : "sext", memory, v, vector(Form::i64)), Form::i64};
    }
    return h;
  }
  // To the nearest, of two equally near ones to the even; NaN stays NaN.
  std::string round_to_bf16(const std::string& v) {
    std::string ints = vector("i32", lanes_), floats = vector(Form::f32);
    std::string bits = let("bitcast {} {} to {}", floats, v, ints);
    std::string odd =
        let("and {} {}, {}", ints, let("lshr {} {}, {}", ints, bits, splatted("i32", "16")), splatted("i32", "1"));
    std::string up = let("add {} {}, {}", ints, let("add {} {}, {}", ints, bits, splatted("i32", "32767")), odd);
    std::string quiet = let("or {} {}, {}", ints, bits, splatted("i32", "4194304"));
    std::string nan = let("fcmp uno {} {}, {}", floats, v, v);
    std::string chosen = let("select {} {}, {} {}, {} {}", vector("i1", lanes_), nan, ints, quiet, ints, up);
    std::string kept = let("and {} {}, {}", ints, chosen, splatted("i32", "-65536"));
    return let("bitcast {} {} to {}", ints, kept, floats);
  }

  const Graph& graph_;
  const Recipe& recipe_;
  const Loop& loop_;
  Isa isa_;
  int lanes_ = 0, wide_ = 0;  // elements of a step; 64-bit elements of a register
  int next_ = 0;
  const char* row_ = "x";  // where a step finds its operands: in the row, or in tiles
  std::string text_;
  std::set<std::string> declarations_;
  std::map<size_t, Held> repeated_;
  std::map<ValueId, Held> held_;
};

}  // namespace

Kernel write_kernel(const Graph& graph, const Recipe& recipe, const Loop& loop, Isa isa) {
  return Writer(graph, recipe, loop, isa).write();
}

std::string write_module(const std::vector<const Kernel*>& kernels) {
  std::set<std::string> declarations;
  std::string text;
  for (const Kernel* k : kernels) declarations.insert(k->declarations.begin(), k->declarations.end());
  for (const std::string& d : declarations) text += d + "\n";
  for (const Kernel* k : kernels) text += "\n" + k->text;
  return text + "\n!0 = !{i32 1}  ; streamed stores\n";
}

}  // namespace tutti::graph::native
