"""Names of the operators that libraries compute: torch's, numpy's, and those of BLAS, LAPACK and their like."""

import re

RECORDING_SPACES = {"profiler", "c10", "torch", "cuda", "autograd", "debug_mode_ops"}
"""Namespaces of events that compute nothing by themselves."""
VENDOR_SPACES = {
    *("mkl", "mkldnn", "mkldnn_prepacked", "onednn", "quantized", "_quantized", "quantization", "sparse", "fbgemm"),
    *("xnnpack", "prepacked", "metal_prepack", "vulkan_prepack", "static_runtime", "inductor", "symm_mem", "_native"),
}
"""Namespaces of torch's operators that a vendor's library computes."""
TORCH_SPACES = {
    *("aten", "prim", "prims", "c10d", "inductor_prims", "rngprims", "debugprims", "export", "_dtensor", "_test"),
    *("_c10d_functional", "_c10d_functional_autograd", "higher_order", *RECORDING_SPACES, *VENDOR_SPACES),
}
"""Namespaces of operators that come with torch."""
PRODUCTS = {
    *("matmul", "mm", "bmm", "addmm", "addbmm", "baddbmm", "mv", "addmv", "dot", "vdot", "vecdot", "inner", "linear"),
    *("einsum", "tensordot", "chain_matmul", "multi_dot", "matrix_power", "matrix_exp", "bilinear", "cdist"),
    *("smm", "spmm", "hspmm", "dsmm", "hsmm", "saddmm", "sspaddmm", "cov", "addmm_activation"),
    *("scaled_mm", "grouped_mm", "scaled_grouped_mm", "int_mm", "linear_cross_entropy", "corrcoef", "imatmul"),
    *("__matmul__", "__rmatmul__", "__imatmul__"),
}
CONVOLUTIONS = {
    *("conv1d", "conv2d", "conv3d", "conv_tbc", "convolution", "stft", "istft"),
    *("conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "mkldnn_convolution", "cudnn_convolution"),
}
SOLVERS = {
    *("cholesky", "cholesky_ex", "cholesky_inverse", "cholesky_solve", "det", "logdet", "slogdet", "eig", "eigh"),
    *("eigvals", "eigvalsh", "householder_product", "geqrf", "orgqr", "ormqr", "inv", "inv_ex", "inverse", "pinv"),
    *("pinverse", "ldl_factor", "ldl_solve", "lstsq", "lu", "lu_factor", "lu_solve", "qr", "svd", "svdvals"),
    *("solve_triangular", "triangular_solve", "tensorinv", "tensorsolve", "lobpcg", "svd_lowrank", "pca_lowrank"),
    *("matrix_norm", "matrix_rank", "nuclear_norm"),
}
RECURRENT = {"rnn", "lstm", "lstm_cell", "gru", "gru_cell", "rnn_relu", "rnn_tanh", "rnn_relu_cell", "rnn_tanh_cell"}
ATTENTION = {"attention", "scaled_dot_product_attention", "multi_head_attention_forward", "flex_attention"}
REDUCTIONS = {"sum", "mean", "prod", "max", "min", "var", "std", "norm", "median", "trace"}
"""Those whose names have other meanings too: in a kernel's own language, methods of these names are not torch's."""
OPERATORS = {
    *(*PRODUCTS, *CONVOLUTIONS, *SOLVERS, *RECURRENT, *ATTENTION, *REDUCTIONS, "compile", "amax", "amin", "aminmax"),
    *("argmax", "argmin", "nansum", "nanmean", "nanmedian", "var_mean", "std_mean", "logsumexp", "vector_norm"),
    *("frobenius_norm", "dist", "count_nonzero", "quantile", "nanquantile", "kthvalue", "topk", "argsort", "msort"),
    *("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", "histc", "bincount", "segment_reduce", "embedding_bag"),
    *("softmax", "log_softmax", "softmin", "gumbel_softmax", "layer_norm", "group_norm", "batch_norm", "instance_norm"),
    *("rms_norm", "local_response_norm", "normalize", "renorm", "native_layer_norm", "native_norm"),
    *("native_group_norm", "native_batch_norm", "cross_entropy", "nll_loss", "mse_loss", "l1_loss", "huber_loss"),
    *("smooth_l1_loss", "softshrink", "hardshrink", "tanhshrink", "glu", "erf", "outer", "ger", "addr", "kron", "fold"),
    *("kl_div", "binary_cross_entropy", "binary_cross_entropy_with_logits", "ctc_loss", "soft_margin_loss"),
    *("cosine_embedding_loss", "cosine_similarity", "margin_ranking_loss", "multi_margin_loss", "poisson_nll_loss"),
    *("multilabel_margin_loss", "multilabel_soft_margin_loss", "gaussian_nll_loss", "hinge_embedding_loss", "pdist"),
    *("triplet_margin_loss", "triplet_margin_with_distance_loss", "pairwise_distance", "max_pool1d", "max_pool2d"),
    *("max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d", "lp_pool1d", "lp_pool2d", "lp_pool3d"),
    *("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d"),
    *("adaptive_max_pool2d", "adaptive_max_pool3d", "fractional_max_pool2d", "fractional_max_pool3d"),
    *("interpolate", "upsample", "grid_sample", "gelu", "relu", "relu6", "leaky_relu", "prelu", "elu", "selu", "celu"),
    *("sigmoid", "logsigmoid", "hardsigmoid", "tanh", "hardtanh", "silu", "hardswish", "mish", "softplus", "softsign"),
    *("trapezoid", "trapz"),
}
SIZED = {
    **{"Conv": "conv", "ConvTranspose": "conv_transpose", "MaxPool": "max_pool", "AvgPool": "avg_pool"},
    **{"AdaptiveAvgPool": "adaptive_avg_pool", "AdaptiveMaxPool": "adaptive_max_pool"},
}
"""Layers that there are for one, two and three axes."""
LAYERS = {
    **{f"{kind}{n}d": f"{name}{n}d" for n in (1, 2, 3) for kind, name in SIZED.items()},
    **{f"{kind}Norm{n}d": f"{kind.lower()}_norm" for n in (1, 2, 3) for kind in ("Batch", "Instance")},
    **{"Linear": "linear", "Bilinear": "bilinear", "LayerNorm": "layer_norm", "GroupNorm": "group_norm"},
    **{"RMSNorm": "rms_norm", "LocalResponseNorm": "local_response_norm", "Softmax": "softmax", "Softmin": "softmin"},
    **{"LogSoftmax": "log_softmax", "LSTM": "lstm", "GRU": "gru", "RNN": "rnn", "MultiheadAttention": "attention"},
    **{"LSTMCell": "lstm_cell", "GRUCell": "gru_cell", "RNNCell": "rnn", "ReLU": "relu", "GELU": "gelu"},
    **{"SiLU": "silu", "Sigmoid": "sigmoid", "Tanh": "tanh", "EmbeddingBag": "embedding_bag"},
    **{"CrossEntropyLoss": "cross_entropy", "MSELoss": "mse_loss", "KLDivLoss": "kl_div", "NLLLoss": "nll_loss"},
}
"""torch's layers, each with the operator that it calls."""
TENSOR_MODULES = ("torch", "operator")
ARRAY_MODULES = ("numpy", "scipy")
ARRAY_PLUMBING = re.compile(
    r"numpy\.((empty|zeros|ones|full)(_like)?|frombuffer|from_dlpack|as(contiguous|fortran|any)?array|array|require|copyto"
    r"|reshape|ravel|transpose|(expand|broadcast)_\w+|squeeze|newaxis|shares_memory|may_share_memory|dtype|ndarray|generic"
    r"|number|integer|floating|(u?int|float|complex|bool)[\d_]*|u?(byte|short|intc|intp|long|longlong)|half|single|double"
    r"|iinfo|finfo|pi|inf|nan|typing\.\w+|ctypeslib\.(ndpointer|as_\w+|load_library|c_intp)"
    r"|lib\.stride_tricks\.\w+)"
)
"""What makes, shapes or hands over arrays without computing."""
LIBRARY_IN_CPP = re.compile(
    r"\bat::(?!Tensor\b|ScalarType|cuda|kFloat|empty|zeros|TensorOptions|parallel_for|Half|BFloat16)\w+(?=\()"
    r"|torch::(?:matmul|conv\w*|nn::functional)\b"
)
_NAMES = "|".join(sorted(OPERATORS - {"compile"}, key=len, reverse=True))
OPERATOR_IN_CPP = re.compile(
    rf"\b(?:at|torch)::(?:\w+::)*(?:_|linalg_)?({_NAMES})(?:_outf?|_)?\s*\(|\baten::(?:linalg_)?({_NAMES})\b"
    r"|\.(matmul|mm|bmm|addmm|addbmm|baddbmm|mv|addmv|softmax|log_softmax|cumsum)\s*\("
)
SILENCING = re.compile(
    r"(?:Disable)?RecordFunctionGuard|enableRecordFunction|set_record_function_tls_|_?disable_?[pP]rofiler\w*"
    r"|(?:disable|remove)Callback|clear(?:Global|ThreadLocal)?Callbacks"
)
"""What turns off the records that an observed call rests on."""
_BLAS = r"gemm(?:t|3m|_batch)?|gemv|symm|symv|hemm|hemv|syrk|syr2k|herk|trmm|trmv|trsm|trsv|ger|dot|axpy"
_LAPACK = r"getr[fsi]|gesv[dx]?|gesdd|potr[fsi]|geqrf|orgqr|ormqr|gels[dy]?|syevd?|heevd?|geev|sytrf|trtr[si]"
VENDOR_NAME = re.compile(
    rf"(?:[sdcz](?:{_BLAS}|{_LAPACK})_(?:64_?)?|(?:sb|sh|bf16_)gemm_|gemm_(?:bf16bf16f32|f16f16f32|s8u8s32)_?"
    r"|(?:cblas|LAPACKE|dnnl|mkldnn|mkl_blas|mkl_sparse|mkl_jit|vml|vslsConv)_\w+|dnnl|ideep|cpublas"
    r"|(?:cublas|cublasLt|cudnn|cusolver|cusolverDn|cusparse|cufft|rocblas|hipblas|miopen)[A-Z]\w*)\Z"
)
PLAIN_BLAS = re.compile(rf"[sdcz](?:{_BLAS}|{_LAPACK})\Z|[SDCZ]GEMM(?:_64|_BATCH)?\Z")
"""The same without an underscore, as MKL has them too; a kernel of one's own may well be called so."""
WORD = re.compile(r"[A-Za-z_]\w*")
C_COMMENT = re.compile(r'"(?:\\.|[^"\\\n])*"?|//[^\n]*|/\*.*?(?:\*/|\Z)', re.S)
