// What Module<> adds to each layer, compiled once for all programs: instances in every file that includes tutti/nn.h
// would take the compiler a second a file. The headers say the same with `extern template`; a layer without these two
// lines works as well.
#include "tutti/nn.h"

namespace tutti::nn {

// activation.h
template class Module<ReLU>;
template class Module<ReLU6>;
template class Module<LeakyReLU>;
template class Module<ELU>;
template class Module<SELU>;
template class Module<CELU>;
template class Module<SiLU>;
template class Module<Mish>;
template class Module<Softplus>;
template class Module<Softsign>;
template class Module<Tanh>;
template class Module<Sigmoid>;
template class Module<LogSigmoid>;
template class Module<Hardtanh>;
template class Module<Hardsigmoid>;
template class Module<Hardswish>;
template class Module<Hardshrink>;
template class Module<Softshrink>;
template class Module<Threshold>;
template class Module<Tanhshrink>;
template class Module<GELU>;
template class Module<Softmax>;
template class Module<Softmin>;
template class Module<LogSoftmax>;
template class Module<GLU>;
template class Module<PReLU>;
template class Module<RReLU>;
template class Module<Dropout>;
template class Module<ChannelDropout>;

// attention.h
template class Module<MultiheadAttention>;
template class Module<TransformerEncoderLayer>;
template class Module<TransformerDecoderLayer>;
template class Module<TransformerEncoder>;
template class Module<TransformerDecoder>;

// container.h
template class Module<Sequential>;
template class Module<ModuleList>;
template class Module<ModuleDict>;
template class Module<ParameterList>;
template class Module<ParameterDict>;
template class Module<Identity>;
template class Module<Flatten>;
template class Module<Unflatten>;

// conv.h
template class Module<Conv1d>;
template class Module<Conv2d>;
template class Module<Conv3d>;
template class Module<ConvTranspose1d>;
template class Module<ConvTranspose2d>;
template class Module<ConvTranspose3d>;

// embedding.h
template class Module<Embedding>;
template class Module<EmbeddingBag>;

// linear.h
template class Module<Linear>;
template class Module<LazyLinear>;
template class Module<Bilinear>;

// norm.h
template class Module<LayerNorm>;
template class Module<RMSNorm>;
template class Module<GroupNorm>;
template class Module<BatchNorm1d>;
template class Module<BatchNorm2d>;
template class Module<BatchNorm3d>;
template class Module<InstanceNorm1d>;
template class Module<InstanceNorm2d>;
template class Module<InstanceNorm3d>;

// pool.h
template class Module<MaxPool1d>;
template class Module<AvgPool1d>;
template class Module<AdaptiveAvgPool1d>;
template class Module<AdaptiveMaxPool1d>;
template class Module<MaxPool2d>;
template class Module<AvgPool2d>;
template class Module<AdaptiveAvgPool2d>;
template class Module<AdaptiveMaxPool2d>;
template class Module<MaxPool3d>;
template class Module<AvgPool3d>;
template class Module<AdaptiveAvgPool3d>;
template class Module<AdaptiveMaxPool3d>;

// rnn.h
template class Module<RNN>;
template class Module<GRU>;
template class Module<LSTM>;

}  // namespace tutti::nn
