// Initialisers: each fills a tensor in place, without recording, from the thread's generator, and returns it.
#pragma once

#include "tutti/tensor.h"

namespace tutti::nn::init {

Tensor uniform_(Tensor t, double low = 0, double high = 1);
Tensor normal_(Tensor t, double mean = 0, double std = 1);
/// Normal, drawn again where it falls outside of [low, high].
Tensor trunc_normal_(Tensor t, double mean = 0, double std = 1, double low = -2, double high = 2);
Tensor constant_(Tensor t, double value);
Tensor zeros_(Tensor t);
Tensor ones_(Tensor t);
/// The identity matrix.
Tensor eye_(Tensor t);
/// Convolution weights that pass their input through.
Tensor dirac_(Tensor t, int64_t groups = 1);
/// A matrix with orthonormal rows or columns, whichever are fewer; dims after the first count as columns.
Tensor orthogonal_(Tensor t, double gain = 1);
/// Normal, with this share of each column zero.
Tensor sparse_(Tensor t, double sparsity, double std = 0.01);

/// Inputs and outputs of one unit of a weight [outputs, inputs, kernel...].
struct Fan {
  int64_t in, out;
};
Fan fan(const Tensor& weight);
enum class FanMode : uint8_t { in, out };
/// What keeps the variance through an activation: "linear", "sigmoid", "tanh", "relu", "leaky_relu", "selu".
double gain(const std::string& nonlinearity, double slope = 0.01);
Tensor xavier_uniform_(Tensor t, double gain = 1);
Tensor xavier_normal_(Tensor t, double gain = 1);
/// `slope` is that of the leaky_relu that follows.
Tensor kaiming_uniform_(Tensor t, double slope = 0, FanMode mode = FanMode::in,
                        const std::string& nonlinearity = "leaky_relu");
Tensor kaiming_normal_(Tensor t, double slope = 0, FanMode mode = FanMode::in,
                       const std::string& nonlinearity = "leaky_relu");

}  // namespace tutti::nn::init
