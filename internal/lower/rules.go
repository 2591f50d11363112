package lower

// rules holds the lowering of every Gorgonia op that has one, by the name of the op's type.
var rules = map[string]rule{
	"constantScalar": constant,
	"constantTensor": constant,
	"Iop":            identity,

	"elemBinOp":   binary,
	"elemUnaryOp": unary,
	"minBetween":  between,
	"maxBetween":  between,
	"dtConvOp":    convertType,

	"linAlgBinOp": product,
	"tensordotOp": tensordot,

	"reshapeOp":   reshape,
	"transposeOp": transpose,
	"sliceOp":     slice,
	"sliceIncrOp": sliceIncr,
	"repeatOp":    repeat,
	"concatOp":    concat,
	"atOp":        at,
	"sizeOp":      sizeOf,

	"byIndicesOp":       byIndices,
	"byIndicesOpDiffOp": byIndicesGrad,

	"sumOp": reduce,
	"maxOp": reduce,

	"softmaxOp":     softmax,
	"softmaxDiffOp": softmaxGrad,

	"randomOp":      random,
	"dropoutOp":     dropout,
	"dropoutDiffOp": dropoutGrad,

	"BatchNormOp":     batchNorm,
	"batchnormDiffOp": batchNormGrad,

	"im2colOp":            im2col,
	"col2imOp":            col2im,
	"maxPoolOp":           maxPool,
	"maxPoolDiffOp":       maxPoolGrad,
	"globalAveragePoolOp": globalAveragePool,
	"upsampleOp":          upsample,
	"upsampleDiffOp":      upsampleGrad,
}

// advice says what to do instead of some ops that have no rule.
var advice = map[string]string{
	"avgPoolOp":     "Gorgonia's AveragePool2D divides by the width of the image, not by the size of the window: use nn.AvgPool2d, or GlobalAveragePool2D",
	"avgPoolDiffOp": "Gorgonia's AveragePool2D divides by the width of the image, not by the size of the window: use nn.AvgPool2d",
	"GroupNormOp":   "there is no lowering for group normalisation: use nn.LayerNorm or nn.BatchNorm2d, or write it with Mean, Square and Sqrt",
	"letOp":         "a program has no assignment: return the new value as an output",
	"readOp":        "a Read node is a statement: ask for the node that it reads",
	"sparsemaxOp":   "there is no lowering for sparsemax: use SoftMax",
	"ctcLossOp":     "there is no lowering for the CTC loss",
}
