// What users hold, and the shipped communication hooks.
#include "tutti/parallel/ddp.h"

#include "base/check.h"
#include "parallel/reducer.h"
#include "tutti/ops.h"

namespace tutti::parallel {
namespace {

// Not in a header of ours, or of the standard library.
bool in_program(const Place& place) {
  std::string_view file = place.file_name();
  return file.find("/include/c++/") == file.npos && !file.ends_with("tutti/parallel/ddp.h");
}
// Errors name where the wrapper was made: that of its options is another if they stood in a variable before. But where
// std::make_unique() and the like make the wrapper, the options are all that knows of the program.
DdpOptions made_at(const Place& place, DdpOptions options) {
  if (in_program(place) || !in_program(options.place)) options.place = place;
  return options;
}

}  // namespace

NoSync::NoSync(std::shared_ptr<Reducer> reducer) : reducer_(std::move(reducer)) { reducer_->add_no_sync(1); }
NoSync::~NoSync() {
  if (reducer_) reducer_->add_no_sync(-1);
}

DdpBase::DdpBase(nn::ModuleBase& module, const DdpOptions& options, const Place& place)
    : reducer_(Reducer::make(module, made_at(place, options))) {}
void DdpBase::before_forward(nn::ModuleBase& module) const { reducer_->check_module(module); }
void DdpBase::after_forward(nn::ModuleBase& module, const TensorList& outputs) const {
  reducer_->find_buffers(module);
  reducer_->watch(outputs);
}
void DdpBase::set_samples(double count) { reducer_->set_samples(count); }
UnusedParameters DdpBase::unused_parameters() const { return reducer_->unused(); }
CommunicationTime DdpBase::communication_time() const { return reducer_->communication_time(); }
void DdpBase::check_equal() const { reducer_->check_equal(); }
std::vector<std::vector<std::string>> DdpBase::buckets() const { return reducer_->bucket_names(); }
DdpBase::operator Joinable() const { return Joinable(reducer_->join_part()); }

CommunicationHook compress(DType dtype) {
  check<DTypeError>(dtype == DType::bf16 || dtype == DType::f16, "compress",
                    "gradients can travel as bf16 or f16, not {}", dtype);
  return [dtype](GradientBucket& bucket) -> Communication {
    Tensor whole = bucket.buffer.is_complex() ? view_as_real(bucket.buffer) : bucket.buffer;
    Tensor half = whole.to(dtype);
    return {all_reduce_async(half, bucket.average), [whole, half]() mutable { whole.copy_(half); }};
  };
}

}  // namespace tutti::parallel
