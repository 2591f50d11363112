package ir

// Target is what a program is compiled for.
type Target struct {
	// TF32 lets backends round the operands of products and convolutions to TF32, 10 bits of mantissa; sums stay float32.
	TF32 bool
}
