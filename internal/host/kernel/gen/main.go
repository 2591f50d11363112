// Command gen writes the assembly of package kernel, for one instruction set a run:
//
//	go run ./gen -isa avx2 -out gen_avx2_amd64.s -stubs gen_avx2_amd64.go -table gen_avx2_table_amd64.go -pkg kernel
//
// Every kernel is written once, over [isa], which hides the width of a vector and the two ways of masking (blends and
// masked moves in AVX2, mask registers in AVX-512). Files: isa.go the vocabulary, vector.go elementwise kernels and
// reductions, math.go the polynomials, gemm.go the micro-kernel, pack.go the movers of panels, pool.go max pooling.
package main

import (
	"flag"
	"fmt"
	"os"

	. "github.com/mmcloughlin/avo/build"
)

func main() {
	name := flag.String("isa", "avx2", "instruction set: avx2 or avx512")
	tableFile := flag.String("table", "", "file for the table of vector kernels")
	flag.Parse()

	var s isa
	switch *name {
	case "avx2":
		s = isa{name: "avx2", width: 8, mr: 6, narrow: 4, nr: 16}
	case "avx512":
		s = isa{name: "avx512", width: 16, mr: 14, narrow: 8, nr: 32}
	default:
		fmt.Fprintf(os.Stderr, "gen: unknown instruction set %q: avx2 and avx512 are known\n", *name)
		os.Exit(2)
	}
	ConstraintExpr("!noasm")

	var t table
	vectorKernels(s, &t)
	reductions(s, &t)
	gemmKernel(s, s.mr)
	gemmKernel(s, s.narrow)
	peakKernel(s)
	packKernels(s)
	if !s.wide() { // the AVX-512 level uses these too
		transpose8(s)
		maxPairs(s)
	}
	if err := t.write(*tableFile, s); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
	Generate()
}
