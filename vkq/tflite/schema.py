"""LiteRT's public schema: its tables (number, type and default of each field), operators and types.

The type of a field is the name of a scalar, ``string``, or the name of a table; brackets around it mean a
vector. Source: https://github.com/google-ai-edge/LiteRT, ``tflite/converter/schema/schema.fbs``.
"""

from __future__ import annotations

SCALARS = {
    "bool": 1, "int8": 1, "uint8": 1, "int32": 4, "uint32": 4, "float32": 4, "int64": 8, "uint64": 8,
}  # fmt: skip

Fields = dict[str, tuple[int, str, float]]


def _fields(*given: str) -> Fields:
    """Return the fields of a table, each described by a text ``number name type [default]``."""
    found = {}
    for text in given:
        number, name, kind, *default = text.split()
        found[name] = int(number), kind, float(default[0]) if default else 0.0
    return found


_ACTIVATION = "fused_activation_function int8"
_WINDOW = ("0 padding int8", "1 stride_w int32", "2 stride_h int32")

TABLES: dict[str, Fields] = {
    "Model": _fields(
        "0 version uint32", "1 operator_codes [OperatorCode]", "2 subgraphs [SubGraph]",
        "3 description string", "4 buffers [Buffer]", "6 metadata [Metadata]",
        "7 signature_defs [SignatureDef]",
    ),
    "OperatorCode": _fields(
        "0 deprecated_builtin_code int8", "1 custom_code string", "2 version int32 1", "3 builtin_code int32"
    ),
    "SubGraph": _fields(
        "0 tensors [Tensor]", "1 inputs [int32]", "2 outputs [int32]", "3 operators [Operator]",
        "4 name string",
    ),
    "Tensor": _fields(
        "0 shape [int32]", "1 type int8", "2 buffer uint32", "3 name string",
        "4 quantization QuantizationParameters", "5 is_variable bool", "6 sparsity SparsityParameters",
        "7 shape_signature [int32]", "8 has_rank bool", "10 external_buffer uint32",
    ),
    "SparsityParameters": {},
    "QuantizationParameters": _fields(
        "2 scale [float32]", "3 zero_point [int64]", "4 details_type uint8", "6 quantized_dimension int32"
    ),
    "Buffer": _fields("0 data [uint8]", "1 offset uint64", "2 size uint64"),
    "Operator": _fields(
        "0 opcode_index uint32", "1 inputs [int32]", "2 outputs [int32]", "3 builtin_options_type uint8",
        "4 builtin_options Options", "5 custom_options [uint8]",
    ),
    "SignatureDef": _fields(
        "0 inputs [TensorMap]", "1 outputs [TensorMap]", "2 signature_key string", "4 subgraph_index uint32"
    ),
    "TensorMap": _fields("0 name string", "1 tensor_index uint32"),
    "Metadata": _fields("0 name string", "1 buffer uint32"),
}  # fmt: skip

# Tables of options of operators: (number in the union of all options, fields).
OPTIONS: dict[str, tuple[int, Fields]] = {
    "": (0, {}),
    "Conv2DOptions": (1, _fields(
        *_WINDOW, f"3 {_ACTIVATION}", "4 dilation_w_factor int32 1", "5 dilation_h_factor int32 1"
    )),
    "DepthwiseConv2DOptions": (2, _fields(
        *_WINDOW, "3 depth_multiplier int32", f"4 {_ACTIVATION}", "5 dilation_w_factor int32 1",
        "6 dilation_h_factor int32 1",
    )),
    "Pool2DOptions": (5, _fields(
        *_WINDOW, "3 filter_width int32", "4 filter_height int32", f"5 {_ACTIVATION}"
    )),
    "FullyConnectedOptions": (8, _fields(
        f"0 {_ACTIVATION}", "1 weights_format int8", "2 keep_num_dims bool",
        "3 asymmetric_quantize_inputs bool",
    )),
    "SoftmaxOptions": (9, _fields("0 beta float32")),
    "ConcatenationOptions": (10, _fields("0 axis int32", f"1 {_ACTIVATION}")),
    "AddOptions": (11, _fields(f"0 {_ACTIVATION}", "1 pot_scale_int16 bool 1")),
    "L2NormOptions": (12, _fields(f"0 {_ACTIVATION}")),
    "ResizeBilinearOptions": (15, _fields("2 align_corners bool", "3 half_pixel_centers bool")),
    "ReshapeOptions": (17, _fields("0 new_shape [int32]")),
    "SpaceToDepthOptions": (19, _fields("0 block_size int32")),
    "MulOptions": (21, _fields(f"0 {_ACTIVATION}")),
    "PadOptions": (22, {}),
    "GatherOptions": (23, _fields("0 axis int32", "1 batch_dims int32")),
    "TransposeOptions": (26, {}),
    "ReducerOptions": (27, _fields("0 keep_dims bool")),
    "SubOptions": (28, _fields(f"0 {_ACTIVATION}", "1 pot_scale_int16 bool 1")),
    "DivOptions": (29, _fields(f"0 {_ACTIVATION}")),
    "SqueezeOptions": (30, _fields("0 squeeze_dims [int32]")),
    "StridedSliceOptions": (32, _fields(
        "0 begin_mask int32", "1 end_mask int32", "2 ellipsis_mask int32", "3 new_axis_mask int32",
        "4 shrink_axis_mask int32", "5 offset bool",
    )),
    "SplitOptions": (35, _fields("0 num_splits int32")),
    "CastOptions": (37, _fields("0 in_data_type int8", "1 out_data_type int8")),
    "ArgMaxOptions": (40, _fields("0 output_type int8")),
    "TransposeConvOptions": (49, _fields(*_WINDOW, f"3 {_ACTIVATION}")),
    "ShapeOptions": (55, _fields("0 out_type int8")),
    "ArgMinOptions": (57, _fields("0 output_type int8")),
    "PackOptions": (59, _fields("0 values_count int32", "1 axis int32")),
    "OneHotOptions": (61, _fields("0 axis int32")),
    "UnpackOptions": (64, _fields("0 num int32", "1 axis int32")),
    "ResizeNearestNeighborOptions": (74, _fields("0 align_corners bool", "1 half_pixel_centers bool")),
    "LeakyReluOptions": (75, _fields("0 alpha float32")),
    "MirrorPadOptions": (77, _fields("0 mode int8")),
    "SplitVOptions": (79, _fields("0 num_splits int32")),
    "IfOptions": (92, _fields("0 then_subgraph_index int32", "1 else_subgraph_index int32")),
    "WhileOptions": (93, _fields("0 cond_subgraph_index int32", "1 body_subgraph_index int32")),
    "DepthToSpaceOptions": (94, _fields("0 block_size int32")),
    "BatchMatMulOptions": (101, _fields("0 adj_x bool", "1 adj_y bool", "2 asymmetric_quantize_inputs bool")),
    "CumsumOptions": (102, _fields("0 exclusive bool", "1 reverse bool")),
    "GeluOptions": (116, _fields("0 approximate bool")),
}  # fmt: skip

TYPES = {
    0: "float32", 1: "float16", 2: "int32", 3: "uint8", 4: "int64", 6: "bool", 7: "int16", 9: "int8",
    10: "float64", 15: "uint32", 16: "uint16", 17: "int4",
}  # fmt: skip

_NAMES = """ADD AVERAGE_POOL_2D CONCATENATION CONV_2D DEPTHWISE_CONV_2D DEPTH_TO_SPACE DEQUANTIZE
EMBEDDING_LOOKUP FLOOR FULLY_CONNECTED HASHTABLE_LOOKUP L2_NORMALIZATION L2_POOL_2D
LOCAL_RESPONSE_NORMALIZATION LOGISTIC LSH_PROJECTION LSTM MAX_POOL_2D MUL RELU RELU_N1_TO_1 RELU6 RESHAPE
RESIZE_BILINEAR RNN SOFTMAX SPACE_TO_DEPTH SVDF TANH CONCAT_EMBEDDINGS SKIP_GRAM CALL CUSTOM
EMBEDDING_LOOKUP_SPARSE PAD UNIDIRECTIONAL_SEQUENCE_RNN GATHER BATCH_TO_SPACE_ND SPACE_TO_BATCH_ND TRANSPOSE
MEAN SUB DIV SQUEEZE UNIDIRECTIONAL_SEQUENCE_LSTM STRIDED_SLICE BIDIRECTIONAL_SEQUENCE_RNN EXP TOPK_V2 SPLIT
LOG_SOFTMAX DELEGATE BIDIRECTIONAL_SEQUENCE_LSTM CAST PRELU MAXIMUM ARG_MAX MINIMUM LESS NEG PADV2 GREATER
GREATER_EQUAL LESS_EQUAL SELECT SLICE SIN TRANSPOSE_CONV SPARSE_TO_DENSE TILE EXPAND_DIMS EQUAL NOT_EQUAL LOG
SUM SQRT RSQRT SHAPE POW ARG_MIN FAKE_QUANT REDUCE_PROD REDUCE_MAX PACK LOGICAL_OR ONE_HOT LOGICAL_AND
LOGICAL_NOT UNPACK REDUCE_MIN FLOOR_DIV REDUCE_ANY SQUARE ZEROS_LIKE FILL FLOOR_MOD RANGE
RESIZE_NEAREST_NEIGHBOR LEAKY_RELU SQUARED_DIFFERENCE MIRROR_PAD ABS SPLIT_V UNIQUE CEIL REVERSE_V2 ADD_N
GATHER_ND COS WHERE RANK ELU REVERSE_SEQUENCE MATRIX_DIAG QUANTIZE MATRIX_SET_DIAG ROUND HARD_SWISH IF WHILE
NON_MAX_SUPPRESSION_V4 NON_MAX_SUPPRESSION_V5 SCATTER_ND SELECT_V2 DENSIFY SEGMENT_SUM BATCH_MATMUL
PLACEHOLDER_FOR_GREATER_OP_CODES CUMSUM CALL_ONCE BROADCAST_TO RFFT2D CONV_3D IMAG REAL COMPLEX_ABS HASHTABLE
HASHTABLE_FIND HASHTABLE_IMPORT HASHTABLE_SIZE REDUCE_ALL CONV_3D_TRANSPOSE VAR_HANDLE READ_VARIABLE
ASSIGN_VARIABLE BROADCAST_ARGS RANDOM_STANDARD_NORMAL BUCKETIZE RANDOM_UNIFORM MULTINOMIAL GELU
DYNAMIC_UPDATE_SLICE RELU_0_TO_1 UNSORTED_SEGMENT_PROD UNSORTED_SEGMENT_MAX UNSORTED_SEGMENT_SUM ATAN2
UNSORTED_SEGMENT_MIN SIGN"""
OPERATORS: dict[int, str] = dict(enumerate(_NAMES.split()))
CUSTOM = 32
OLD_CODES = 127  # operators with this number or a larger one are stored only in ``builtin_code``
ACTIVATIONS = {0: "", 1: "RELU", 2: "RELU_N1_TO_1", 3: "RELU6", 4: "TANH", 5: "SIGN_BIT"}
SAME, VALID = 0, 1  # numbers of the padding modes in the file
