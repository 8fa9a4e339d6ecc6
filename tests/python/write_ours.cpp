// write_ours DIRECTORY: files of every format that the library writes, for read_ours.py to read.
#include <cstdio>
#include <limits>

#include "tutti/tutti.h"

using namespace tutti;

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  std::string folder = std::string(argv[1]) + "/";
  Tensor rows = arange(12).reshape({3, 4});
  io::Tensors arrays;
  for (DType dtype : {f32, f64, f16, i8, i16, i32, i64, boolean, c64, c128})
    arrays[to_string(dtype)] = (rows - 5).to(dtype);
  arrays["u8"] = (rows * 20).to(u8);
  arrays["scalar"] = tensor(2.5).to(f64);
  arrays["empty"] = zeros({2, 0, 3});
  arrays["columns"] = rows.to(f32).t();
  arrays["folder/name"] = tensor({1.5, -2.5}).to(f64);
  io::save_npz(folder + "arrays.npz", arrays);
  for (auto& [name, tensor] : arrays)
    if (name.find('/') == std::string::npos) io::save_npy(folder + name + ".npy", tensor);

  io::Tensors tensors = arrays;
  for (const char* name : {"c64", "c128"}) tensors.erase(name);  // numpy's side of the format has none
  tensors["bf16"] = (rows - 5).to(bf16);
  tensors["a \"name\" with ünïcode/and.dots"] = tensor({1, 2, 3});
  io::save_safetensors(folder + "ours.safetensors", tensors, {{"made", "by Tutti"}, {"text", "line\n\"two\" ü"}});

  nn::Linear net(2, 3);
  nn::init::constant_(net.weight, 0.5);
  nn::init::constant_(net.bias, -1);
  int64_t step = 7;
  io::Checkpoint(folder + "run.ckpt", {{"model", net}, {"step", step}}).save();

  io::EventWriter events(folder + "events");
  events.add_scalar("loss/ü", 0.25, 7);
  events.add_scalar("late", -1.5, int64_t{1} << 40);
  events.add_text("notes", "**hello** ü", 1);
  events.add_histogram("weights", tensor({0., 1., 2., 3., 4., std::numeric_limits<double>::infinity()}), 2, 4);
  events.add_image("grey", tensor({{0., 0.5, 1.}, {2., -1., 0.25}}), 3);
  events.add_image("colour", arange(12).to(u8).reshape({3, 2, 2}), 4);
}
