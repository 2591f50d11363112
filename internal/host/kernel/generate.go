package kernel

//go:generate go run ./gen -isa avx2 -out gen_avx2_amd64.s -stubs gen_avx2_amd64.go -table gen_avx2_table_amd64.go -pkg kernel
//go:generate go run ./gen -isa avx512 -out gen_avx512_amd64.s -stubs gen_avx512_amd64.go -table gen_avx512_table_amd64.go -pkg kernel
