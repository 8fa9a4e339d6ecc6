// libtutti_native.so: the only file that sees LLVM.
#include <llvm/AsmParser/Parser.h>
#include <llvm/Bitcode/BitcodeReader.h>
#include <llvm/Config/llvm-config.h>
#include <llvm/ExecutionEngine/Orc/LLJIT.h>
#include <llvm/IR/InstIterator.h>
#include <llvm/IR/LegacyPassManager.h>
#include <llvm/IR/Module.h>
#include <llvm/IR/Verifier.h>
#include <llvm/Linker/Linker.h>
#include <llvm/MC/TargetRegistry.h>
#include <llvm/Passes/PassBuilder.h>
#include <llvm/Support/MemoryBuffer.h>
#include <llvm/Support/SmallVectorMemoryBuffer.h>
#include <llvm/Support/SourceMgr.h>
#include <llvm/Support/TargetSelect.h>
#include <llvm/Target/TargetMachine.h>
#include <llvm/TargetParser/Host.h>
#include <llvm/Transforms/IPO/AlwaysInliner.h>
#include <llvm/Transforms/IPO/GlobalDCE.h>
#include <llvm/Transforms/InstCombine/InstCombine.h>
#include <llvm/Transforms/Scalar/EarlyCSE.h>

#include <atomic>
#include <mutex>
#include <string>
#include <string_view>

#include "graph/backends/native/bitcode.h"
#include "graph/backends/native/module.h"

namespace {

using tutti::native::Level;
using tutti::native::level_of;

void initialise() {
  static const bool done = [] {
    llvm::InitializeNativeTarget();
    llvm::InitializeNativeTargetAsmPrinter();
    return true;
  }();
  (void)done;
}

llvm::Expected<std::unique_ptr<llvm::TargetMachine>> machine_for(const Level& level) {
  std::string error, triple = llvm::sys::getProcessTriple();
  const llvm::Target* target = llvm::TargetRegistry::lookupTarget(triple, error);
  if (!target) return llvm::createStringError(error);
  llvm::TargetOptions options;
  options.AllowFPOpFusion = llvm::FPOpFusion::Strict;
  options.NoTrappingFPMath = true;
  return std::unique_ptr<llvm::TargetMachine>(target->createTargetMachine(triple, level.cpu, "", options,
                                                                          llvm::Reloc::PIC_, llvm::CodeModel::Small,
                                                                          llvm::CodeGenOptLevel::Less, /*JIT=*/true));
}

// The text, and of the primitives what it calls, as one module in which only the kernels are visible.
llvm::Expected<std::unique_ptr<llvm::Module>> link(llvm::LLVMContext& context, llvm::StringRef text, const Level& level,
                                                   const llvm::TargetMachine& machine) {
  llvm::SMDiagnostic diagnostic;
  auto module = llvm::parseAssemblyString(text, diagnostic, context);
  if (!module) {
    std::string message;
    llvm::raw_string_ostream stream(message);
    diagnostic.print("generated code", stream);
    return llvm::createStringError(stream.str());
  }
  module->setTargetTriple(machine.getTargetTriple().str());
  module->setDataLayout(machine.createDataLayout());
  auto primitives = llvm::getLazyBitcodeModule(llvm::MemoryBufferRef(level.bitcode, "primitives"), context,
                                               /*ShouldLazyLoadMetadata=*/true);
  if (!primitives) return primitives.takeError();
  (*primitives)->setTargetTriple(module->getTargetTriple());
  (*primitives)->setDataLayout(module->getDataLayout());
  std::vector<std::string> kernels;
  for (const llvm::Function& f : *module)
    if (!f.isDeclaration()) kernels.push_back(f.getName().str());
  if (llvm::Linker::linkModules(*module, std::move(*primitives), llvm::Linker::LinkOnlyNeeded))
    return llvm::createStringError("the primitives could not be linked");
  for (llvm::Function& f : *module)
    if (!f.isDeclaration()) f.setLinkage(llvm::GlobalValue::InternalLinkage);
  for (const std::string& name : kernels) {
    llvm::Function& f = *module->getFunction(name);
    f.setLinkage(llvm::GlobalValue::ExternalLinkage);
    f.addFnAttr("target-cpu", level.cpu);
    f.addFnAttr("prefer-vector-width", "512");
    f.addFnAttr("min-legal-vector-width", "512");
    f.addFnAttr("no-trapping-math", "true");
    f.addFnAttr(llvm::Attribute::NoUnwind);
    // What is inlined must have been compiled for no more than its caller.
    for (const llvm::Function& other : *module)
      if (other.hasFnAttribute("target-features") && !f.hasFnAttribute("target-features"))
        f.addFnAttr(other.getFnAttribute("target-features"));
  }
  return module;
}

void optimise(llvm::Module& module, llvm::TargetMachine& machine) {
  llvm::LoopAnalysisManager loops;
  llvm::FunctionAnalysisManager functions;
  llvm::CGSCCAnalysisManager cycles;
  llvm::ModuleAnalysisManager modules;
  llvm::PassBuilder builder(&machine);
  builder.registerModuleAnalyses(modules);
  builder.registerCGSCCAnalyses(cycles);
  builder.registerFunctionAnalyses(functions);
  builder.registerLoopAnalyses(loops);
  builder.crossRegisterProxies(loops, functions, cycles, modules);
  llvm::ModulePassManager passes;
  passes.addPass(llvm::AlwaysInlinerPass(/*InsertLifetime=*/false));
  passes.addPass(llvm::GlobalDCEPass());
  llvm::FunctionPassManager each;
  each.addPass(llvm::EarlyCSEPass());
  each.addPass(llvm::InstCombinePass(llvm::InstCombineOptions().setMaxIterations(1).setVerifyFixpoint(false)));
  each.addPass(llvm::EarlyCSEPass());
  passes.addPass(llvm::createModuleToFunctionPassAdaptor(std::move(each)));
  passes.run(module, modules);
}

// In kernels that need not have eager's bits, a product that is added to something may become one operation with it.
// (More would break formulas, whose roundings are meant: adding a large number and taking it away again.)
void allow_contraction(llvm::Module& module) {
  for (llvm::Function& f : module) {
    if (!f.hasFnAttribute("tutti-inexact")) continue;
    for (llvm::Instruction& i : llvm::instructions(f))
      if (llvm::isa<llvm::FPMathOperator>(i)) i.setHasAllowContract(true);
  }
}

llvm::Expected<llvm::SmallString<0>> generate(llvm::StringRef text, const Level& level, bool assembly) {
  initialise();
  auto machine = machine_for(level);
  if (!machine) return machine.takeError();
  llvm::LLVMContext context;
  auto module = link(context, text, level, **machine);
  if (!module) return module.takeError();
  optimise(**module, **machine);
  allow_contraction(**module);
  llvm::SmallString<0> bytes;
  llvm::raw_svector_ostream stream(bytes);
  llvm::legacy::PassManager passes;
  auto type = assembly ? llvm::CodeGenFileType::AssemblyFile : llvm::CodeGenFileType::ObjectFile;
  if ((*machine)->addPassesToEmitFile(passes, stream, nullptr, type, /*DisableVerify=*/true))
    return llvm::createStringError("this machine's code cannot be generated");
  passes.run(**module);
  return bytes;
}

llvm::Expected<llvm::orc::LLJIT*> jit() {
  static std::unique_ptr<llvm::orc::LLJIT> made;
  static std::string problem;
  static std::once_flag once;
  std::call_once(once, [] {
    initialise();
    auto created = llvm::orc::LLJITBuilder().create();
    if (created)
      made = std::move(*created);
    else
      problem = llvm::toString(created.takeError());
  });
  if (!made) return llvm::createStringError(problem);
  return made.get();
}

// Each object has a namespace of its own: the same kernel may come twice.
llvm::Error load(llvm::StringRef object, const char* const* names, void** addresses, size_t count) {
  auto process = jit();
  if (!process) return process.takeError();
  static std::atomic<uint64_t> number = 0;
  auto space = (*process)->createJITDylib("kernels" + std::to_string(number++));
  if (!space) return space.takeError();
  if (auto error = (*process)->addObjectFile(*space, llvm::MemoryBuffer::getMemBufferCopy(object, "kernels")))
    return error;
  for (size_t i = 0; i < count; ++i) {
    auto address = (*process)->lookup(*space, names[i]);
    if (!address) return address.takeError();
    addresses[i] = address->toPtr<void*>();
  }
  return llvm::Error::success();
}

void give(tutti_native_take take, void* to, llvm::Error error) {
  std::string message = llvm::toString(std::move(error));
  take(to, message.data(), message.size());
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) const char* tutti_native_identity(const char* isa) {
  static const std::string identity =
      std::string("llvm " LLVM_VERSION_STRING " primitives ") + tutti::native::bitcode_hash();
  return level_of(isa).bitcode.empty() ? "" : identity.c_str();
}

__attribute__((visibility("default"))) bool tutti_native_compile(const char* text, size_t size, const char* isa,
                                                                 bool assembly, tutti_native_take take, void* to) {
  auto bytes = generate({text, size}, level_of(isa), assembly);
  if (!bytes) {
    give(take, to, bytes.takeError());
    return false;
  }
  take(to, bytes->data(), bytes->size());
  return true;
}

__attribute__((visibility("default"))) bool tutti_native_load(const char* object, size_t size, const char* const* names,
                                                              void** addresses, size_t count, tutti_native_take take,
                                                              void* to) {
  if (auto error = load({object, size}, names, addresses, count)) {
    give(take, to, std::move(error));
    return false;
  }
  return true;
}
}
