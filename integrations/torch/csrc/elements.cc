#include "elements.h"

#include <ATen/ATen.h>
#include <c10/core/ScalarTypeToTypeMeta.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include "library.h"

namespace gft {
namespace {

int32_t OpOf(const char* what, const at::Tensor& tensor,
             const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
    case c10d::ReduceOp::PREMUL_SUM:
      return GF_SUM;
    case c10d::ReduceOp::AVG:
      return GF_MEAN;
    case c10d::ReduceOp::PRODUCT:
      return GF_PRODUCT;
    case c10d::ReduceOp::MIN:
      return GF_MIN;
    case c10d::ReduceOp::MAX:
      return GF_MAX;
    case c10d::ReduceOp::BAND:
      return GF_BIT_AND;
    case c10d::ReduceOp::BOR:
      return GF_BIT_OR;
    case c10d::ReduceOp::BXOR:
      return GF_BIT_XOR;
    default:
      TORCH_CHECK_VALUE(false, "GradientFlow: ", what, ": ReduceOp.",
                        NameOf(op), " of ", tensor.scalar_type(),
                        " is not supported; expected SUM, AVG, PRODUCT, MIN, "
                        "MAX, BAND, BOR, BXOR or PREMUL_SUM");
  }
}

// The operation on bytes that are 0 or 1.
int32_t BoolOp(const char* what, const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
    case c10d::ReduceOp::MAX:
    case c10d::ReduceOp::BOR:
      return GF_MAX;
    case c10d::ReduceOp::PRODUCT:
    case c10d::ReduceOp::MIN:
    case c10d::ReduceOp::BAND:
      return GF_MIN;
    case c10d::ReduceOp::BXOR:
      return GF_BIT_XOR;
    default:
      TORCH_CHECK_TYPE(false, "GradientFlow: ", what, ": ReduceOp.", NameOf(op),
                       " of bool has no meaning; convert it first");
  }
}

bool IsBitwise(int32_t op) {
  return op == GF_BIT_AND || op == GF_BIT_OR || op == GF_BIT_XOR;
}

}  // namespace

std::string NameOf(const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
      return "SUM";
    case c10d::ReduceOp::AVG:
      return "AVG";
    case c10d::ReduceOp::PRODUCT:
      return "PRODUCT";
    case c10d::ReduceOp::MIN:
      return "MIN";
    case c10d::ReduceOp::MAX:
      return "MAX";
    case c10d::ReduceOp::BAND:
      return "BAND";
    case c10d::ReduceOp::BOR:
      return "BOR";
    case c10d::ReduceOp::BXOR:
      return "BXOR";
    case c10d::ReduceOp::PREMUL_SUM:
      return "PREMUL_SUM";
    default:
      return "number " + std::to_string(static_cast<int>(op.op_));
  }
}

Elements ForReduce(const char* what, const at::Tensor& tensor,
                   const c10d::ReduceOp& op) {
  const at::ScalarType type = tensor.scalar_type();
  const auto count = static_cast<size_t>(tensor.numel());
  if (type == at::kBool) return {GF_UINT8, count, BoolOp(what, op)};
  const int32_t number = OpOf(what, tensor, op);
  if (at::isComplexType(type)) {
    const auto real = DtypeOf(c10::toRealValueType(type));
    TORCH_CHECK_TYPE(real && (number == GF_SUM || number == GF_MEAN),
                     "GradientFlow: ", what, ": ReduceOp.", NameOf(op), " of ",
                     type, " has no meaning; expected SUM or AVG");
    return {*real, 2 * count, number};
  }
  const auto dtype = DtypeOf(type);
  TORCH_CHECK_TYPE(dtype, "GradientFlow: ", what, ": ReduceOp.", NameOf(op),
                   " of ", type,
                   " is not supported; expected a float of 16, 32 or 64 bits, "
                   "int8, uint8, int32, int64, bool or complex");
  const bool integral = at::isIntegralType(type, /*includeBool=*/false);
  TORCH_CHECK_TYPE(!(IsBitwise(number) && !integral), "GradientFlow: ", what,
                   ": ReduceOp.", NameOf(op), " of ", type,
                   " has no meaning; expected integers or bool");
  TORCH_CHECK_TYPE(!(number == GF_MEAN && integral), "GradientFlow: ", what,
                   ": ReduceOp.AVG of ", type,
                   " would lose its fraction; expected a float or complex "
                   "type");
  TORCH_CHECK_TYPE(!(op.op_ == c10d::ReduceOp::PREMUL_SUM && integral),
                   "GradientFlow: ", what, ": ReduceOp.PREMUL_SUM of ", type,
                   " would lose its fractions; expected a float or complex "
                   "type");
  return {*dtype, count, number};
}

at::Tensor Premultiplied(const at::Tensor& tensor, const c10d::ReduceOp& op) {
  if (op.op_ != c10d::ReduceOp::PREMUL_SUM) return tensor;
  // The older name of the class, which all supported versions of torch have.
  const auto* factor =
      dynamic_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  TORCH_CHECK_VALUE(factor != nullptr,
                    "GradientFlow: ReduceOp.PREMUL_SUM without a factor");
  const at::NoGradGuard no_grad;
  if (!factor->tensor_factor.defined()) {
    return at::mul(tensor, factor->double_factor);
  }
  const at::Tensor& by = factor->tensor_factor;
  return at::mul(tensor, by.to(tensor.options().dtype(by.dtype())).squeeze())
      .to(tensor.scalar_type());
}

Elements ForMove(const at::Tensor& tensor) {
  const auto count = static_cast<size_t>(tensor.numel());
  if (const auto dtype = DtypeOf(tensor.scalar_type())) return {*dtype, count};
  return {GF_UINT8, count * tensor.element_size()};
}

}  // namespace gft
