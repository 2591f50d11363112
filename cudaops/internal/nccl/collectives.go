package nccl

import "github.com/tandem-train/tandem/cudaops/internal/cuda"

// calls are the library's collectives. Data are float32, sums are sums.
type calls struct {
	allReduce     func(from, to cuda.Ptr, n uint64, dtype, op int32, comm uintptr, s cuda.Stream) int32
	reduce        func(from, to cuda.Ptr, n uint64, dtype, op, root int32, comm uintptr, s cuda.Stream) int32
	broadcast     func(from, to cuda.Ptr, n uint64, dtype, root int32, comm uintptr, s cuda.Stream) int32
	reduceScatter func(from, to cuda.Ptr, share uint64, dtype, op int32, comm uintptr, s cuda.Stream) int32
	allGather     func(from, to cuda.Ptr, share uint64, dtype int32, comm uintptr, s cuda.Stream) int32
}

// The library's names of float32 and of the sum.
const (
	float32Type = 7
	sum         = 0
)

// AllReduce puts the sum of all ranks' n elements at from to every rank's to, which may be from.
func (c *Comm) AllReduce(from, to cuda.Ptr, n int, s cuda.Stream) error {
	return c.lib.check("ncclAllReduce", c.lib.allReduce(from, to, uint64(n), float32Type, sum, c.handle, s), c.handle)
}

// Reduce puts the sum of all ranks' n elements at from to root's to, which may be from; the others' to is not used.
func (c *Comm) Reduce(from, to cuda.Ptr, n, root int, s cuda.Stream) error {
	return c.lib.check("ncclReduce", c.lib.reduce(from, to, uint64(n), float32Type, sum, int32(root), c.handle, s), c.handle)
}

// Broadcast copies root's n elements at from to every rank's to, which may be from.
func (c *Comm) Broadcast(from, to cuda.Ptr, n, root int, s cuda.Stream) error {
	return c.lib.check("ncclBroadcast", c.lib.broadcast(from, to, uint64(n), float32Type, int32(root), c.handle, s), c.handle)
}

// ReduceScatter puts share number r of the sum of all ranks' elements at from to rank r's to, which may be where that share lies in from.
// There are as many shares as ranks.
func (c *Comm) ReduceScatter(from, to cuda.Ptr, share int, s cuda.Stream) error {
	return c.lib.check("ncclReduceScatter", c.lib.reduceScatter(from, to, uint64(share), float32Type, sum, c.handle, s), c.handle)
}

// AllGather copies every rank r's share at from to share number r of every rank's to; from may be where the rank's share lies there.
func (c *Comm) AllGather(from, to cuda.Ptr, share int, s cuda.Stream) error {
	return c.lib.check("ncclAllGather", c.lib.allGather(from, to, uint64(share), float32Type, c.handle, s), c.handle)
}
